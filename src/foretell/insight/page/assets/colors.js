// Light and dark, and the color scales. Scales are even in lightness (OKLCH) and work with every kind of color vision:
// lightness alone shows a weight, blue and orange show a sign. A color follows the square root of a weight; otherwise
// small weights would be invisible.
import { byId, onLeave } from "./dom.js";

// Light or dark: as in the system, unless chosen on the page. The browser keeps the choice, if it may.
const THEME = "foretell theme", THEMES = ["light", "dark"];
const themeListeners = new Set();
const system = matchMedia("(prefers-color-scheme: dark)");

export function onTheme(listener) {
  themeListeners.add(listener);
  onLeave(() => themeListeners.delete(listener));
}
export const isDark = () => {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : system.matches;
};

export function showTheme() {
  const notify = () => themeListeners.forEach((listener) => listener());
  printInLight(notify);
  system.addEventListener("change", notify);
  const choose = (theme) => {
    if (THEMES.includes(theme)) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
  };
  const kept = stored(() => localStorage.getItem(THEME));
  choose(kept);
  byId("theme").value = THEMES.includes(kept) ? kept : "auto"; // some browsers keep the last value when a page is reloaded
  byId("theme").addEventListener("change", (event) => {
    choose(event.target.value);
    stored(() => localStorage.setItem(THEME, event.target.value));
    notify();
  });
}

// What a use of the browser's storage returns; null where the browser refuses storage.
function stored(use) {
  try {
    return use();
  } catch {
    return null;
  }
}

// Paper is white: maps are painted in light colors while the page is printed.
function printInLight(notify) {
  const root = document.documentElement;
  const print = (isPrinting) => {
    if (isPrinting === (root.dataset.printing !== undefined)) return;
    if (isPrinting) root.dataset.printing = root.dataset.theme ?? "";
    const before = root.dataset.printing;
    if (isPrinting) root.dataset.theme = "light";
    else {
      delete root.dataset.printing;
      if (before) root.dataset.theme = before;
      else delete root.dataset.theme;
    }
    notify();
  };
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
  matchMedia("print").addEventListener("change", (event) => print(event.matches)); // browsers without those events
}

const STOPS = 256;
const LIGHT = { low: [0.975, 0.008, 250], high: [0.31, 0.125, 268], hidden: [0.93, 0.0, 0] };
const DARK = { low: [0.23, 0.02, 262], high: [0.93, 0.055, 220], hidden: [0.29, 0.0, 0] };
const SIGNS = { light: [[0.98, 0.0, 80], [0.42, 0.13, 258], [0.58, 0.15, 55]], dark: [[0.24, 0.01, 260], [0.8, 0.11, 240], [0.82, 0.13, 70]] };

const known = new Map();

// 256 colors as [r, g, b], from weight 0 to weight 1.
export function weightColors() {
  return remember(isDark() ? "dark" : "light", () => ramp(isDark() ? DARK.low : LIGHT.low, isDark() ? DARK.high : LIGHT.high));
}
export const hiddenColor = () => toRgb(...(isDark() ? DARK : LIGHT).hidden);
export const stepOf = (weight) => Math.min(STOPS - 1, Math.round(Math.sqrt(Math.max(0, weight)) * (STOPS - 1)));
export const weightColor = (weight) => css(weightColors()[stepOf(weight)]);
// Black or white, whichever is easier to read on the color of this weight or share.
export const inkOn = (weight) => contrasting(weightColors()[stepOf(weight)]);
export const inkOnSign = (share) => contrasting(signColor(share));
function contrasting([r, g, b]) {
  return 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b) > 0.179 ? "#000" : "#fff";
}

// The color of a share from -1 (orange) to 1 (blue).
export function signColor(share) {
  const [zero, above, below] = isDark() ? SIGNS.dark : SIGNS.light;
  const side = share < 0 ? below : above;
  const colors = remember(`${isDark()}${share < 0}`, () => ramp([zero[0], zero[1], side[2]], side));
  return colors[Math.min(STOPS - 1, Math.round(Math.sqrt(Math.min(1, Math.abs(share))) * (STOPS - 1)))];
}

// The weight scale as 32-bit pixels for image data; browsers run on little-endian machines only.
const pixel = ([r, g, b]) => (255 << 24) | (b << 16) | (g << 8) | r;
export const weightPixels = () => remember(isDark() ? "dark pixels" : "light pixels", () => {
  const colors = weightColors().map(pixel);
  return Int32Array.from({ length: 10001 }, (_, whole) => colors[stepOf(whole / 10000)]);
});
export const hiddenPixel = () => pixel(hiddenColor());

export const css = ([r, g, b]) => `rgb(${r} ${g} ${b})`;

const remember = (name, compute) => known.get(name) ?? (known.set(name, compute()), known.get(name));
const linear = (value) => ((value / 255 + 0.055) / 1.055) ** 2.4;

function ramp(low, high) {
  return Array.from({ length: STOPS }, (_, i) => {
    const share = i / (STOPS - 1);
    return toRgb(...low.map((from, axis) => from + (high[axis] - from) * share));
  });
}

// Björn Ottosson's OKLab, 2020.
function toRgb(lightness, chroma, hue) {
  const a = chroma * Math.cos((hue * Math.PI) / 180), b = chroma * Math.sin((hue * Math.PI) / 180);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ].map((value) => {
    const held = Math.min(1, Math.max(0, value));
    return Math.round(255 * (held <= 0.0031308 ? 12.92 * held : 1.055 * held ** (1 / 2.4) - 0.055));
  });
}
