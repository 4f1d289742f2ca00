// The panels of the live page below its editor.
import { byId, make } from "../dom.js";

export function addPanel(id, title, ...children) {
  byId("live-panels").append(make("section", { class: "card panel", id, "aria-labelledby": `${id}-title` }, make("h2", { id: `${id}-title` }, title), ...children));
}

// A panel that is opened when it is wanted.
export function addFoldedPanel(id, title, ...children) {
  const inside = make("details", {}, make("summary", {}, make("h2", { id: `${id}-title` }, title)), make("div", { class: "panel" }, ...children));
  byId("live-panels").append(make("section", { class: "card folded", id, "aria-labelledby": `${id}-title` }, inside));
  return inside;
}

// A label and its select; `input.value` is the index of an option.
export function select(id, label, options, attributes = {}) {
  const input = make("select", { id, ...attributes }, ...options.map((words, i) => make("option", { value: i }, words)));
  return { input, parts: [make("label", { for: id }, label), input] };
}

export const signed = (digits, value) => `${value > 0 ? "+" : ""}${digits(value)}`;
