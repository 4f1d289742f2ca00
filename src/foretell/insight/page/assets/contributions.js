// Direct contributions of heads and layers to the logit of a token after the chosen one, which add up to the logit.
import { css, inkOnSign, onTheme, signColor } from "./colors.js";
import { whyMissing } from "./data.js";
import { barHeading, button, byId, caption, fill, heading, headings, hint, make, numberCell, onArrows, region, tableHead } from "./dom.js";
import { addressOf, four, named, opensDifference, quoted, two } from "./format.js";
import { signedBar } from "./terms.js";

export function showContributions(data, choice) {
  if (!data.hasContributions) return;
  const comparison = makeComparison("contribution");
  const show = () => {
    const parts = data.get("contributions.parts")?.value;
    const position = choice.token - data.lensFrom, atOnce = data.atOnce.parts;
    const stored = position < 0 ? null : data.get(`contributions.${Math.floor(position / atOnce)}`);
    byId("contributions-title").textContent = `Contributions to a logit after ${named(data, choice.token)}`;
    if (!parts || !stored) return fill(byId("contributions"), hint(whyMissing(data)));
    const rows = candidates(stored, position % atOnce).map((row) => ({ ...row, words: quoted(data.vocabulary[row.id]) }));
    const own = comparison.difference(rows, ["contributions", choice.token], "head", "logits");
    fill(byId("contributions"), comparison.selects(rows, show), make("div", { class: "columns" }, ...contributionTables(data, choice, "contribution", parts, own)));
  };
  choice.on(["token", "layer", "head", "data"], show);
  onTheme(show);
}

const LAST = -1; // the number of the sum of all parts

// The choice of a logit, and of one that is subtracted from it, at first the last one or none.
// rows: [{id, words, logit, parts, tokens}], of which the last two are lists of contributions. `difference` adds
// address(n), of the contribution of part n, addressIn(kind, ...), of another kind of contribution, and logits:
// [{title, logit, address}]. Its arguments: the name and first indices of contributions, the names of logits and of their differences.
export function makeComparison(id, isLastSubtracted = false) {
  let chosen = 0, against = isLastSubtracted ? Infinity : null;
  const hold = (rows) => {
    chosen = Math.min(chosen, rows.length - 1);
    if (against === Infinity) against = rows.length - 1;
    if (against !== null && (against === chosen || against >= rows.length)) against = null;
  };
  return {
    difference(rows, [name, ...first], nameOfLogit, nameOfDifference = nameOfLogit) {
      hold(rows);
      const row = rows[chosen], other = rows[against], ids = [row, ...(other ? [other] : [])].map(({ id }) => id);
      const logits = [row, ...(other ? [other] : [])].map(({ id, words, title, logit }) => ({ title: title ?? `Logit of ${words}`, logit, address: addressOf(nameOfLogit, ...first, id) }));
      const addressIn = (kind, ...rest) => addressOf(`${name}${kind}${other ? ".difference" : ""}`, ...first, ...ids, ...rest);
      const addresses = { logits, addressIn, address: (part) => addressIn("", part), ofDifference: other && addressOf(`${nameOfDifference}.difference`, ...first, ...ids) };
      if (!other) return { ...row, ...addresses };
      const minus = (list) => row[list]?.map((value, i) => value - other[list][i]);
      return { ...row, ...addresses, logit: row.logit - other.logit, constant: row.constant - other.constant, parts: minus("parts"), tokens: minus("tokens") };
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

// What each part, and what each head contributed; noun: what it adds up to. `own`: a row, as `makeComparison` has them, also
// with constants: [[words, value, address]] that are not of the parts, and the address of the whole without them.
export const contributionTables = (data, choice, id, parts, own, noun = "logit") => [sumTable(data, id, parts, own, noun), make("div", {}, ...headTables(data, choice, id, parts, own))];

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
function rowsOf(data, parts, { parts: values, address }) {
  const rows = new Map();
  parts.forEach(({ name, layer, module, sum }, i) => {
    const row = rows.get(sum) ?? { words: layer === null ? name : `layer ${layer}, ${data.sublayers[module] ?? module}`, value: 0, address: address(sum) };
    row.value += values[i];
    rows.set(sum, row);
  });
  return [...rows.values()];
}

function sumTable(data, id, parts, own, noun) {
  const rows = rowsOf(data, parts, own);
  const largest = Math.max(...rows.map(({ value }) => Math.abs(value))) || 1;
  const total = own.parts.reduce((sum, value) => sum + value, 0), constants = own.constants ?? [];
  const remainder = constants.reduce((rest, [, value]) => rest - value, own.logit - total);
  const line = ({ words, value, address }) => make("tr", {}, make("th", { scope: "row" }, words), numberCell(four(value), address), signedBar(value / largest));
  const end = (words, value, address) => make("tr", { class: "total" }, make("th", { scope: "row" }, words), numberCell(four(value), address), make("td", {}));
  const isRounding = Math.abs(remainder) <= 0.02 * Math.max(1, Math.abs(own.logit)); // of bfloat16
  const words = `What each part added to the ${noun}, directly: the dot product of its vector, divided by the last norm, with a row of the head. Blue raises the ${noun}, orange lowers it. The remainder is ${isRounding ? "rounding" : "from a value of the stream that was changed"}.`;
  return region("Contributions by layer",
    make("table", { class: "bars signed", id: `${id}-sums` }, caption(words),
      tableHead(...headings(["Part", "Contribution"]), barHeading()),
      make("tbody", {}, ...rows.map(line), end("Sum", total, own.address(LAST)), ...constants.map(([words, value, address]) => end(words, value, address)), end("Remainder", remainder, opensDifference({ address: own.whole ?? own.ofDifference ?? own.logits[0].address }, { address: own.address(LAST) })),
        ...(own.logits.length > 1 ? [...own.logits.map(({ title, logit, address }) => end(title, logit, address)), end("Difference", own.logit, own.ofDifference)]
          : [end(`${noun[0].toUpperCase()}${noun.slice(1)} of the model`, own.logit, own.logits[0].address)]))));
}

// The contribution of every head: a table per kind of attention, one row per layer.
function headTables(data, choice, id, parts, own) {
  const largest = Math.max(...parts.map(({ head }, i) => (head === null ? 0 : Math.abs(own.parts[i])))) || 1;
  const modules = new Set(parts.filter(({ head }) => head !== null).map(({ module }) => module));
  return [...modules].map((module) => {
    const numbers = new Map(parts.map((part, i) => [part, i]).filter(([part]) => part.module === module && part.head !== null).map(([{ layer, head }, i]) => [`${layer} ${head}`, i]));
    const valueOf = (layer, head) => own.parts[numbers.get(`${layer} ${head}`)] ?? 0, number = numbers.get(`${choice.layer} ${choice.head}`);
    const table = headTable(data, choice, `${id}-${module}`, module, valueOf, largest);
    if (number === undefined) return table;
    const address = own.address(number);
    table.append(make("p", { class: "reading", id: `${id}-${module}-reading` }, `Head ${choice.head} of layer ${choice.layer}: ${four(own.parts[number])} `, ...(address ? [make("code", { "data-address": address }, address)] : [])));
    return table;
  });
}

// A click or the arrow keys choose the head.
function headTable(data, choice, prefix, module, valueOf, largest) {
  const { layers, heads } = data.shape, id = `${prefix}-heads`;
  const cell = (layer, head) => {
    const value = valueOf(layer, head), share = value / largest, words = `layer ${layer}, head ${head}: ${four(value)}`;
    const isChosen = layer === choice.layer && head === choice.head;
    return make("td", { class: isChosen ? "chosen" : "", style: `background:${css(signColor(share))};color:${inkOnSign(share)}` },
      button(two(value), () => choose(layer, head), { class: "quiet", tabindex: isChosen ? 0 : -1, "aria-label": words, title: words }));
  };
  const choose = (layer, head) => {
    choice.set({ layer, head });
    byId(id)?.querySelector(".chosen button").focus(); // none where a new pass is shown that has no contributions yet
  };
  const table = make("table", { class: "weights", id }, make("caption", { class: "sr" }, `Contributions of heads, ${module}`),
    tableHead(make("td", {}), ...Array.from({ length: heads }, (_, head) => heading(String(head)))),
    make("tbody", {}, ...Array.from({ length: layers }, (_, layer) => make("tr", {}, make("th", { scope: "row" }, `layer ${layer}`), ...Array.from({ length: heads }, (_, head) => cell(layer, head))))));
  onArrows(table, (right, down) => choose(choice.layer + down, choice.head + right), (first) => choose(choice.layer, first ? 0 : heads - 1));
  return make("div", {}, hint(`Every head of ${data.sublayers[module] ?? module}: rows are layers, columns are heads. Choose one to see its attention.`),
    region(`Contributions of heads, ${module}`, table));
}
