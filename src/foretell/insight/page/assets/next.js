// The distribution after the last token, from the logits of the full vocabulary, as the sliders ask for it.
import { at, fill, make } from "page/dom.js";
import { barTable } from "page/bars.js";
import { growing, makeControl, straight } from "page/control.js";
import { count, four } from "page/format.js";
import { byLikelihood, distribution } from "page/sampling.js";

const SHOWN = 10;

export function showNext(data) {
  const logits = data.get("logits").whole;
  const size = logits.length;
  const order = byLikelihood(logits);
  const settings = { temperature: 1, topK: null, topP: 1 };
  const unfiltered = distribution(logits, order, settings).probabilities;

  const update = () => {
    const { kept, probabilities } = distribution(logits, order, settings);
    const rows = Array.from(order.subarray(0, Math.min(SHOWN, kept)), (id, i) => ({ text: data.vocabulary[id], probability: probabilities[i] }));
    fill(at("next-table"), barTable(`The ${count(rows.length, "likeliest token")} of ${size.toLocaleString("en")}`, rows));
    let mass = 0;
    for (let i = 0; i < kept; i++) mass += unfiltered[i];
    at("next-summary").textContent = kept === size
      ? `All ${count(size, "token")} can be drawn.`
      : `${count(kept, "token")} of ${size.toLocaleString("en")} can be drawn; without filters they have ${four(Math.min(1, mass))} of the probability.`;
  };
  const set = (name, read = (value) => value) => (value) => { settings[name] = read(value); update(); };
  const controls = [
    makeControl({ id: "temperature", label: "Temperature", hint: "below 1 the likely becomes likelier; 0 takes the likeliest", low: 0, high: 2, step: 0.05, value: 1, scale: straight(0, 2, 0.05), change: set("temperature") }),
    makeControl({ id: "top-k", label: "Top-k", hint: "keep the k likeliest; all, at the right end", low: 1, high: size, step: 1, value: size, scale: growing(size), change: set("topK", (k) => (k >= size ? null : Math.round(k))) }),
    makeControl({ id: "top-p", label: "Top-p", hint: "keep the likeliest until they reach this probability", low: 0.01, high: 1, step: 0.01, value: 1, scale: straight(0, 1, 0.01), change: set("topP") }),
  ];
  const reset = make("button", { type: "button", class: "plain", onclick: () => [1, size, 1].forEach((value, i) => controls[i].put(value)) }, "Back to the model’s own");
  fill(at("controls"), ...controls.map((control) => control.element), reset);
  update();
}
