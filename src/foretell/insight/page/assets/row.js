// The chosen token's row of attention as a table: every key that it may see, with its score and weight.
import { at, caption, fill, make } from "page/dom.js";
import { four, named, visible } from "page/format.js";
import { hasOperands, scores } from "page/operands.js";
import { firstKey, isKept, row } from "page/weights.js";

export function showRow(data, choice) {
  let byWeight = true;
  const show = () => {
    at("row-title").textContent = `What ${named(data, choice.token)} looks at, in numbers`;
    if (!isKept(data, choice.token)) return fill(at("row-table"), make("p", { class: "hint" }, "This row is not in the page."));
    const order = make("button", { type: "button", class: "plain", onclick: () => { byWeight = !byWeight; show(); } },
      byWeight ? "Sort by position" : "Sort by weight");
    fill(at("row-table"), order, make("div", { class: "scroll tall", tabindex: 0, role: "region", "aria-label": "Row of attention" }, table(data, choice, byWeight)));
  };
  choice.listen((changed) => ["token", "key", "layer", "head"].some((name) => changed.has(name)) && show());
}

function table(data, choice, byWeight) {
  const { layer, head, token } = choice;
  const first = firstKey(data, layer, token);
  const own = hasOperands(data, layer) ? scores(data, layer, head, token) : null;
  const entries = Array.from(row(data, layer, head, token), (whole, i) => ({ key: first + i, weight: whole / 10000, score: own?.[i] }));
  if (byWeight) entries.sort((a, b) => b.weight - a.weight || a.key - b.key);
  const line = ({ key, weight, score }) => make("tr", { class: key === choice.key ? "chosen" : "" },
    make("td", { class: "number" }, String(key)),
    make("th", { scope: "row" }, make("button", { type: "button", class: "link", onclick: () => choice.set({ key }), "aria-label": `${visible(data.tokens[key].text)}, show its formula` }, make("bdi", { class: "piece" }, visible(data.tokens[key].text)))),
    ...(own ? [make("td", { class: "number" }, four(score))] : []),
    make("td", { class: "number" }, four(weight)),
    make("td", { class: "bar", "aria-hidden": "true" }, make("span", { style: `width:${100 * weight}%` })));
  const hidden = data.tokens.length - entries.length;
  const words = `Layer ${layer}, head ${head}: ${entries.length} keys to see${hidden ? `, ${hidden} hidden` : ""}. A key’s name shows its formula below.`;
  return make("table", { class: "bars" }, caption(words),
    make("thead", {}, make("tr", {}, make("th", { scope: "col", class: "number" }, "Key"), make("th", { scope: "col" }, "Token"),
      ...(own ? [make("th", { scope: "col", class: "number" }, "Score")] : []), make("th", { scope: "col", class: "number" }, "Weight"), make("td", { "aria-hidden": "true" }))),
    make("tbody", {}, ...entries.map(line)));
}
