// A labelled slider with a box for the exact number beside it. The slider's scale may differ from the number's.
import { make } from "page/dom.js";

const STOPS = 1000;

// scale: {toShare(value), fromShare(share)} between the number and 0 ... 1.
export function makeControl({ id, label, hint, low, high, step, value, scale, change }) {
  const slider = make("input", { type: "range", id, min: 0, max: STOPS, step: 1, "aria-describedby": `${id}-hint` });
  const box = make("input", { type: "number", id: `${id}-number`, min: low, max: high, step, inputmode: "decimal", "aria-label": `${label}, exact number` });
  const put = (next, from) => {
    value = Math.min(high, Math.max(low, next));
    if (from !== slider) slider.value = Math.round(scale.toShare(value) * STOPS);
    if (from !== box) box.value = value;
    slider.setAttribute("aria-valuetext", value);
  };
  slider.addEventListener("input", () => { put(scale.fromShare(slider.value / STOPS), slider); change(value); });
  box.addEventListener("input", () => {
    if (box.value !== "" && Number.isFinite(box.valueAsNumber)) { put(box.valueAsNumber, box); change(value); }
  });
  box.addEventListener("change", () => put(value));
  put(value);
  const element = make("div", { class: "control" },
    make("label", { for: id }, label), slider, box, make("p", { class: "hint", id: `${id}-hint` }, hint));
  return { element, put: (next) => { put(next); change(value); } };
}

export const straight = (low, high, step) => ({
  toShare: (value) => (value - low) / (high - low),
  fromShare: (share) => Number((Math.round((low + share * (high - low)) / step) * step).toFixed(4)),
});

// Whole numbers from 1 to `high`, each power of ten as long as the next.
export const growing = (high) => ({
  toShare: (value) => (high === 1 ? 1 : Math.log(value) / Math.log(high)),
  fromShare: (share) => Math.round(high ** share),
});
