// Arcs from the token under the pointer (or the chosen one) to the tokens it attends to, as thick as the weight.
import { at, draw, fill, make, onWidth } from "page/dom.js";
import { four, named, short } from "page/format.js";
import { firstKey, isKept, row } from "page/weights.js";

const HEIGHT = 190; // of the arcs
const LEAST = 0.005; // weights below are not drawn
const LETTER = 13; // pixels between labels that stay apart

export function showArcs(data, choice) {
  const holder = fill(at("arcs"), make("p", { class: "hint" }, `Move over the line; a click chooses. Weights below ${LEAST} are not drawn.`));
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
    const seen = visibleKeys(data, choice, token);
    at("arcs-title").textContent = `Arcs from ${named(data, token)} in layer ${choice.layer}, head ${choice.head}`;
    fill(lines, ...seen.map((one) => arc(data, token, one, step)), baseline(width));
    fill(labels, ...tokenLabels(data, token, seen, step));
  };
  choice.listen(show);
  onWidth(at("arcs"), (known) => {
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

// Strongest last, so that it lies on top.
function visibleKeys(data, choice, token) {
  if (!isKept(data, token)) return [];
  const first = firstKey(data, choice.layer, token);
  return Array.from(row(data, choice.layer, choice.head, token), (whole, i) => ({ key: first + i, weight: whole / 10000 }))
    .filter((one) => one.weight >= LEAST)
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

// All labels where there is room, else those of the token and of the keys it looks at most, as far as they stay apart.
function tokenLabels(data, token, seen, step) {
  const all = step >= LETTER;
  const wanted = all ? data.tokens.map((_, i) => i) : [token, ...seen.map((one) => one.key).reverse()];
  const weights = new Map(seen.map((one) => [one.key, one.weight]));
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
