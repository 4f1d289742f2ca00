// One row of attention, of the chosen token in the chosen head: as arcs and as a table.
import { firstKey, hasOperands, inCore, isKept, scaledScores, weightRow } from "./data.js";
import { bar, barHeading, button, byId, caption, draw, fill, heading, headings, hint, make, numberCell, onWidth, region, tableHead } from "./dom.js";
import { count, four, named, short, visible } from "./format.js";

// Arcs from the token under the pointer, or the chosen one, to its keys; the width shows the weight.
const HEIGHT = 190; // of the arcs
const LEAST = 0.005; // weights below are not drawn
const LETTER = 13; // least pixels between labels

export function showArcs(data, choice) {
  const holder = fill(byId("arcs"), hint(`Weights below ${LEAST} are not drawn.`));
  const lines = draw("g", { class: "lines" }), labels = draw("g", { class: "labels" });
  const picture = draw("svg", { role: "img", "aria-labelledby": "arcs-title", class: "arcs" }, lines, labels);
  holder.append(picture);
  const room = 24 + 6.6 * Math.max(...data.tokens.map((token) => short(token.text, 12).length)); // below the line
  let width = 0;

  const tokenAt = (event) => {
    const box = picture.getBoundingClientRect();
    const step = stepOf(data, width);
    return Math.min(data.last, Math.max(0, Math.floor((event.clientX - box.left - PAD) / step)));
  };
  picture.addEventListener("pointermove", (event) => choice.point({ token: tokenAt(event) }));
  picture.addEventListener("pointerleave", () => choice.point(null));
  picture.addEventListener("click", (event) => choice.set({ token: tokenAt(event) }));

  const show = () => {
    if (!width) return;
    const token = choice.shownToken();
    const step = stepOf(data, width);
    const pairs = visibleKeys(data, choice, token);
    byId("arcs-title").textContent = `Arcs from ${named(data, token)}`;
    fill(lines, ...pairs.map((pair) => arc(data, token, pair, step)), baseline(width));
    fill(labels, ...tokenLabels(data, token, pairs, step));
  };
  choice.listen(show);
  onWidth(byId("arcs"), (known) => {
    width = known;
    picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT + room}`);
    picture.setAttribute("width", width);
    picture.setAttribute("height", HEIGHT + room);
    show();
  });
}

const PAD = 10;
const stepOf = (data, width) => Math.min(92, (width - 2 * PAD) / data.tokens.length);
const middle = (position, step) => PAD + (position + 0.5) * step;

// Largest weight last, so that it is drawn on top.
function visibleKeys(data, choice, token) {
  if (!isKept(data, token)) return [];
  const first = firstKey(data, choice.layer, token);
  return Array.from(weightRow(data, choice.layer, choice.head, token), (whole, i) => ({ key: first + i, weight: whole / 10000 }))
    .filter(({ weight }) => weight >= LEAST)
    .sort((a, b) => a.weight - b.weight);
}

function arc(data, token, { key, weight }, step) {
  const from = middle(token, step), to = middle(key, step);
  const words = draw("title", {}, `${named(data, token)} → ${named(data, key)}: ${four(weight)}`);
  const look = { "stroke-width": 0.75 + 7 * weight, opacity: 0.25 + 0.75 * Math.sqrt(weight) };
  if (key === token) return draw("circle", { cx: from, cy: HEIGHT - 8, r: 5, ...look }, words);
  const reach = Math.abs(from - to);
  const height = Math.min(HEIGHT - 14, 16 + reach * 0.5);
  const lift = HEIGHT - (height * 4) / 3;
  return draw("path", { d: `M${from} ${HEIGHT} C${from} ${lift} ${to} ${lift} ${to} ${HEIGHT}`, ...look }, words);
}

const baseline = (width) => draw("line", { x1: PAD, x2: width - PAD, y1: HEIGHT, y2: HEIGHT, class: "baseline" });

// All labels if there is room, else the labels that do not overlap, of the token and of the keys with the largest weights.
function tokenLabels(data, token, pairs, step) {
  const all = step >= LETTER;
  const wanted = all ? data.tokens.map((_, i) => i) : [token, ...pairs.map(({ key }) => key).reverse()];
  const weights = new Map(pairs.map(({ key, weight }) => [key, weight]));
  const placed = [];
  for (const i of wanted) {
    if (!all && placed.some((other) => Math.abs(other - i) * step < LETTER)) continue;
    placed.push(i);
  }
  return placed.map((i) => {
    const x = middle(i, step), y = HEIGHT + 10;
    const kind = i === token ? "from" : weights.has(i) ? "to" : "";
    return draw("text", { x, y, class: kind, transform: `rotate(60 ${x} ${y})`, "dominant-baseline": "middle" }, short(data.tokens[i].text, 12));
  });
}

// The chosen token's row of attention as a table: every visible key with its scaled attention score and its weight.
export function showRow(data, choice) {
  let byWeight = true;
  const show = () => {
    byId("row-title").textContent = `Attention weights of ${named(data, choice.token)}`;
    byId("row-address").textContent = inCore(data, choice.layer, "weights", choice.head, choice.token);
    if (!isKept(data, choice.token)) return fill(byId("row-table"), hint("This row is not in this page."));
    const order = button(byWeight ? "Sort by position" : "Sort by weight", () => { byWeight = !byWeight; show(); });
    fill(byId("row-table"), order, region("Row of attention", rowTable(data, choice, byWeight), "tall"));
  };
  choice.on(["token", "key", "layer", "head"], show);
}

function rowTable(data, choice, byWeight) {
  const { layer, head, token } = choice;
  const first = firstKey(data, layer, token);
  const own = hasOperands(data, layer) ? scaledScores(data, layer, head, token) : null;
  const entries = Array.from(weightRow(data, layer, head, token), (whole, i) => ({ key: first + i, weight: whole / 10000, scaled: own?.[i] }));
  if (byWeight) entries.sort((a, b) => b.weight - a.weight || a.key - b.key);
  const line = ({ key, weight, scaled }) => make("tr", { class: key === choice.key ? "chosen" : "" },
    numberCell(String(key)),
    make("th", { scope: "row" }, button(make("bdi", { class: "piece" }, visible(data.tokens[key].text)), () => choice.set({ key }), { class: "link", "aria-label": `${visible(data.tokens[key].text)}, show its formula` })),
    ...(own ? [numberCell(four(scaled), inCore(data, layer, "scaled", head, token, key))] : []),
    numberCell(four(weight), inCore(data, layer, "weights", head, token, key)),
    bar(weight));
  const hidden = data.tokens.length - entries.length;
  const words = `Layer ${layer}, head ${head}: ${count(entries.length, "visible key")}${hidden ? `, ${hidden.toLocaleString("en")} hidden` : ""}. ${own ? "The scaled score is q·k / √E, before the softmax. " : ""}A full bar is weight 1. Click a key to see its formula below.`;
  return make("table", { class: "bars" }, caption(words),
    tableHead(heading("Key", true), ...headings(["Token", ...(own ? ["Scaled score"] : []), "Weight"]), barHeading()),
    make("tbody", {}, ...entries.map(line)));
}
