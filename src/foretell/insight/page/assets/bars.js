// A table of tokens with their probabilities as bars.
import { caption, make } from "page/dom.js";
import { four, visible } from "page/format.js";

// rows: [{text, probability, mark}]; the largest probability fills the bar's place.
export function barTable(title, rows, headings = ["Token", "Probability"]) {
  const largest = Math.max(...rows.map((row) => row.probability), 1e-9);
  const line = ({ text, probability, mark }) => make("tr", mark ? { class: "marked" } : {},
    make("th", { scope: "row" }, make("bdi", { class: "piece" }, visible(text)), ...(mark ? [make("span", { class: "mark" }, mark)] : [])),
    make("td", { class: "number" }, four(probability)),
    make("td", { class: "bar", "aria-hidden": "true" }, make("span", { style: `width:${(100 * probability) / largest}%` })));
  return make("table", { class: "bars" },
    caption(title),
    make("thead", {}, make("tr", {}, ...headings.map((name, i) => make("th", { scope: "col", class: i ? "number" : "" }, name)), make("td", { "aria-hidden": "true" }))),
    make("tbody", {}, ...rows.map(line)));
}
