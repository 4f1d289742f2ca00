// Direct contributions of heads and layers to the logit of a token after the chosen one, which add up to the logit.
import { css, inkOnSign, onTheme, signColor } from "./colors.js";
import { whyMissing } from "./data.js";
import { byId, caption, fill, make, onArrows } from "./dom.js";
import { four, named, quoted, two } from "./format.js";
import { signedBar } from "./terms.js";

export function showContributions(data, choice) {
  if (!data.hasContributions) return;
  const comparison = makeComparison("contribution");
  const show = () => {
    const parts = data.get("contributions.parts")?.value;
    const position = choice.token - data.lensFrom, atOnce = data.atOnce.parts;
    const stored = position < 0 ? null : data.get(`contributions.${Math.floor(position / atOnce)}`);
    byId("contributions-title").textContent = `Contributions to a logit after ${named(data, choice.token)}`;
    if (!parts || !stored) return fill(byId("contributions"), make("p", { class: "hint" }, whyMissing(data)));
    const rows = candidates(stored, position % atOnce).map((row) => ({ ...row, words: quoted(data.vocabulary[row.id]) }));
    const own = comparison.difference(rows);
    fill(byId("contributions"), comparison.selects(rows, show), make("div", { class: "columns" }, ...contributionTables(data, choice, "contribution", parts, own)));
  };
  choice.listen((changed) => ["token", "layer", "head", "data"].some((name) => changed.has(name)) && show());
  onTheme(show);
}

// The choice of a logit, and of one that is subtracted from it, at first the last one or none.
// rows: [{words, logit, parts, tokens}], of which the last two are lists of contributions.
export function makeComparison(id, isLastSubtracted = false) {
  let chosen = 0, against = isLastSubtracted ? Infinity : null;
  const hold = (rows) => {
    chosen = Math.min(chosen, rows.length - 1);
    if (against === Infinity) against = rows.length - 1;
    if (against !== null && (against === chosen || against >= rows.length)) against = null;
  };
  return {
    difference(rows) {
      hold(rows);
      const row = rows[chosen], other = rows[against];
      if (!other) return row;
      const minus = (name) => row[name]?.map((value, i) => value - other[name][i]);
      return { ...row, logit: row.logit - other.logit, parts: minus("parts"), tokens: minus("tokens") };
    },
    selects(rows, show) {
      const select = (name, words, value, options, change) => make("span", { class: "field" }, make("label", { for: name }, words),
        make("select", { id: name, onchange: (event) => { change(event.target.value); show(); byId(name).focus(); } }, ...options.map(([key, text]) => make("option", { value: key, selected: key === String(value) }, text))));
      const options = rows.map(({ words, logit }, i) => [String(i), `${words} (${four(logit)})`]);
      return make("div", { class: "choices" },
        select(`${id}-token`, "Logit of", chosen, options, (value) => { chosen = Number(value); }),
        select(`${id}-against`, "minus the logit of", against ?? "", [["", "no other"], ...options.filter((_, i) => i !== chosen)], (value) => { against = value === "" ? null : Number(value); }));
    },
  };
}

// What each part, and what each head contributed; `own`: a row, as `makeComparison` has them; noun: what it adds up to.
export const contributionTables = (data, choice, id, parts, own, noun = "logit") => [sumTable(id, parts, own, noun), make("div", {}, ...headTables(data, choice, id, parts, own))];

// The tokens whose contributions the page has at the chosen position, each once: {id, logit, parts}.
function candidates(stored, position) {
  const [, count] = stored.shape, known = new Map();
  for (let k = 0; k < count; k++) {
    const [id, logit, ...parts] = stored.vector(position, k);
    if (!known.has(id)) known.set(id, { id, logit, parts });
  }
  return [...known.values()];
}

// Sums of the parts by layer and module, in the order of the pass.
function rowsOf(parts, values) {
  const rows = new Map();
  parts.forEach(({ name, layer, module }, i) => {
    const key = layer === null ? name : `layer ${layer}, ${module}`;
    const row = rows.get(key) ?? { words: key, value: 0, names: [] };
    row.value += values[i];
    row.names.push(name);
    rows.set(key, row);
  });
  return [...rows.values()];
}

function sumTable(id, parts, own, noun) {
  const rows = rowsOf(parts, own.parts);
  const largest = Math.max(...rows.map(({ value }) => Math.abs(value))) || 1;
  const constant = own.constant ?? 0, total = own.parts.reduce((sum, value) => sum + value, constant);
  const line = ({ words, value }) => make("tr", {}, make("th", { scope: "row" }, words), make("td", { class: "number" }, four(value)), signedBar(value / largest));
  const end = (words, value) => make("tr", { class: "total" }, make("th", { scope: "row" }, words), make("td", { class: "number" }, four(value)), make("td", {}));
  const words = `What each part added to the ${noun}, directly: the dot product of its vector, divided by the last norm, with a row of the head. Blue raises the ${noun}, orange lowers it. The remainder is rounding.`;
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Contributions by layer" },
    make("table", { class: "bars signed", id: `${id}-sums` }, caption(words),
      make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Part"), make("th", { scope: "col", class: "number" }, "Contribution"), make("td", { "aria-hidden": "true" }))),
      make("tbody", {}, ...rows.map(line), ...(constant ? [end("Mean of the training examples", constant)] : []), end("Sum", total), end("Remainder", own.logit - total), end(`${noun[0].toUpperCase()}${noun.slice(1)} of the model`, own.logit))));
}

// The contribution of every head: a table per kind of attention, one row per layer.
function headTables(data, choice, id, parts, own) {
  const largest = Math.max(...parts.map(({ head }, i) => (head === null ? 0 : Math.abs(own.parts[i])))) || 1;
  const modules = new Set(parts.filter(({ head }) => head !== null).map(({ module }) => module));
  return [...modules].map((module) => {
    const values = new Map(parts.map((part, i) => [part, own.parts[i]]).filter(([part]) => part.module === module && part.head !== null).map(([{ layer, head }, value]) => [`${layer} ${head}`, value]));
    return headTable(data, choice, `${id}-${module}`, module, (layer, head) => values.get(`${layer} ${head}`) ?? 0, largest);
  });
}

// A click or the arrow keys choose the head.
function headTable(data, choice, prefix, module, valueOf, largest) {
  const { layers, heads } = data.shape, id = `${prefix}-heads`;
  const cell = (layer, head) => {
    const value = valueOf(layer, head), share = value / largest, words = `layer ${layer}, head ${head}: ${four(value)}`;
    const isChosen = layer === choice.layer && head === choice.head;
    return make("td", { class: isChosen ? "chosen" : "", style: `background:${css(signColor(share))};color:${inkOnSign(share)}` },
      make("button", { type: "button", class: "quiet", tabindex: isChosen ? 0 : -1, "aria-label": words, title: words, onclick: () => choose(layer, head) }, two(value)));
  };
  const choose = (layer, head) => {
    choice.set({ layer, head });
    byId(id).querySelector(".chosen button").focus();
  };
  const table = make("table", { class: "weights", id }, make("caption", { class: "sr" }, `Contributions of heads, ${module}`),
    make("thead", {}, make("tr", {}, make("td", {}), ...Array.from({ length: heads }, (_, head) => make("th", { scope: "col" }, String(head))))),
    make("tbody", {}, ...Array.from({ length: layers }, (_, layer) => make("tr", {}, make("th", { scope: "row" }, `layer ${layer}`), ...Array.from({ length: heads }, (_, head) => cell(layer, head))))));
  onArrows(table, (right, down) => choose(choice.layer + down, choice.head + right), (first) => choose(choice.layer, first ? 0 : heads - 1));
  return make("div", {}, make("p", { class: "hint" }, `Every head of ${module.replace("_", " ")}: rows are layers, columns are heads. Choose one to see its attention.`),
    make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Contributions of heads, ${module}` }, table));
}
