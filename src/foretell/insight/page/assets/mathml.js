// Formulas as MathML, which browsers set themselves.
import { four } from "page/format.js";

const MATHML = "http://www.w3.org/1998/Math/MathML";
const IN_FULL = 8; // numbers of a vector; longer ones show their first and last
const ENDS = [3, 2];

const node = (tag, ...children) => {
  const element = document.createElementNS(MATHML, tag);
  element.append(...children);
  return element;
};

export const row = (...parts) => node("mrow", ...parts.map((part) => (typeof part === "string" ? operator(part) : part)));
export const symbol = (name) => { const own = node("mi", name); if (name.length > 1) own.setAttribute("mathvariant", "normal"); return own; };
export const number = (value) => node("mn", value === -Infinity ? "−∞" : four(value));
export const whole = (value) => node("mn", String(value));
export const words = (text) => node("mtext", text);
export const operator = (sign) => node("mo", sign);
export const fraction = (over, under) => node("mfrac", over, under);
export const root = (inside) => node("msqrt", inside);
export const below = (base, index) => node("msub", base, index);
export const above = (base, power) => node("msup", base, power);
export const group = (inside) => row("(", inside, ")");
const signed = (value) => (value < 0 ? group(number(value)) : number(value));

export function vector(values) {
  const shown = values.length <= IN_FULL ? values.map(number) : [...values.slice(0, ENDS[0]).map(number), operator("…"), ...values.slice(-ENDS[1]).map(number)];
  return row("[", ...shown.flatMap((one, i) => (i ? [spaced(), one] : [one])), "]");
}

// a·b written out: every product where there are few, else the first and the last.
export function products(a, b) {
  const product = (i) => row(signed(a[i]), "·", signed(b[i]));
  const shown = a.length <= 3 ? a.map((_, i) => product(i)) : [product(0), product(1), operator("…"), product(a.length - 1)];
  return row(...shown.flatMap((one, i) => (i ? ["+", one] : [one])));
}

const spaced = () => { const own = node("mspace"); own.setAttribute("width", "0.7em"); return own; };

export function formula(...parts) {
  const math = node("math", row(...parts));
  math.setAttribute("display", "block");
  return math;
}
