// Formatting of numbers and tokens.

export const four = (value) => {
  if (Math.abs(value) < 0.00005) return "0.0000";
  return (Math.abs(value) >= 1e6 ? value.toExponential(3) : value.toFixed(4)).replace("-", "−");
};
// Two decimals, where there is no room for four.
export const two = (value) => (Math.abs(value) < 0.005 ? "0.00" : value.toFixed(2).replace("-", "−"));
// A value of a series in four significant digits.
export const value = (number) => String(Number(number.toPrecision(4))).replace("-", "−");
// A probability: four decimals, and two significant digits if it is small, so that none but 0 is shown as 0.
export const probability = (value) => {
  if (value === 0 || value >= 0.001) return value.toFixed(4);
  return (value >= 0.0001 ? value.toPrecision(2) : value.toExponential(1)).replace("-", "−");
};
// A probability that may be stored to four decimals: a small one is shown as what it may be.
export const storedProbability = (value) => (value < 0.00005 ? "< 0.0001" : value.toFixed(4));
// A function that writes numbers of one kind with the same decimals: seven significant digits of the largest, and three of each
// result, their sum or difference. A number with fewer than two, or numbers that are all large or small, are in powers of ten.
export function inOneScale(numbers, results = []) {
  const powers = (list) => list.filter((number) => Number.isFinite(number) && number !== 0).map((number) => Math.floor(Math.log10(Math.abs(number))));
  const largest = Math.max(...powers([...numbers, ...results])), least = Math.min(...powers(results).filter((power) => power > largest - ROUNDING));
  const decimals = Math.min(MOST_DIGITS - 1 - largest, Math.max(6 - largest, 2 - least));
  const isWhole = [...numbers, ...results].every((number) => Number.isInteger(number) && Math.abs(number) < 1e7);
  return (number) => {
    const isSmall = number !== 0 && Math.abs(number) < 10 ** (1 - decimals);
    const text = isWhole ? String(number) : largest < -4 || largest > 6 ? number.toExponential(6) : isSmall ? number.toExponential(3) : number.toFixed(decimals);
    return text.replaceAll("-", "−");
  };
}
const MOST_DIGITS = 16, ROUNDING = 12; // digits of float64; smaller results, by powers of ten, are its rounding
// The address of a number of a trace, as in `foretell explain --value`.
export const addressOf = (name, ...index) => `${name}[${index.join(",")}]`;
// The attributes of a number of another pass than the shown one, and of a difference. A number is {address, words, ...}:
// what the pass is called, and the fields of a request in which it differs from the shown pass.
export const opens = ({ address, ...pass }) => ({ "data-address": address, "data-pass": JSON.stringify(pass) });
export const opensDifference = (number, other) => ({ ...opens(number), "data-minus": JSON.stringify(other) });
export const count = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;

const MARKS = { "\n": "⏎", "\r": "␍", "\t": "⇥", "\u00a0": "⍽" };
const MEANING = { "␣": "a space", "⏎": "a line break", "⇥": "a tab" };
// The meaning of the marks in texts, except those in earlier ones: “⏎ is a line break.”
export function marksIn(texts, earlier = []) {
  const has = (some, mark) => some.some((text) => visible(text).includes(mark));
  const marks = Object.keys(MEANING).filter((mark) => has(texts, mark) && !has(earlier, mark));
  return marks.length ? `${marks.map((mark) => `${mark} is ${MEANING[mark]}`).join(", ")}.` : "";
}
const INVISIBLE = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Co}\p{Cn}]/u;

// A token with visible white space: spaces at either end are ␣, a control character is shown as its code point.
export function visible(text) {
  if (text === null || text === undefined) return "(no token)";
  if (text === "") return "(empty)";
  const letters = Array.from(text), isOther = (letter) => letter !== " ";
  const [first, last] = [letters.findIndex(isOther), letters.findLastIndex(isOther)];
  return letters.map((letter, i) => {
    if (letter === " ") return i < first || i > last ? "␣" : " ";
    if (MARKS[letter]) return MARKS[letter];
    if (letter === "\u200d" && letters.length > 1) return letter; // joins emoji
    return INVISIBLE.test(letter) ? `U+${letter.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}` : letter;
  }).join("");
}

// Right-to-left text is isolated; otherwise it would reorder the words around it.
const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufefc]/;
const isolated = (text) => (RIGHT_TO_LEFT.test(text) ? `\u2068${text}\u2069` : text);
export const quoted = (text) => `“${isolated(visible(text))}”`;
export const short = (text, length = 14) => {
  const letters = Array.from(visible(text));
  return letters.length <= length ? letters.join("") : `${letters.slice(0, length - 1).join("")}…`;
};
export const named = (data, position) => `${quoted(data.tokens[position].text)} (${position})`;
