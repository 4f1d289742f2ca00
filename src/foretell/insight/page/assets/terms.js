// The attention score of the chosen pair term by term: q·k is a sum of one product per dimension.
import { groupOf, hasOperands, inCore, isRounded, isVisible, keyVector, queryVector, whyMissing } from "./data.js";
import { barHeading, button, byId, caption, draw, fill, headings, hint, make, numberCell, onWidth, region, tableHead } from "./dom.js";
import { four, named } from "./format.js";

const HEIGHT = 150, MARGIN = 14; // pixels

export function showTerms(data, choice) {
  let width = 0, bySize = true;
  const picture = make("div"), table = make("div");
  fill(byId("terms"), picture, table);
  const show = () => {
    const { layer, head, token, key } = choice;
    byId("terms-title").textContent = `q·k term by term: ${named(data, token)} → ${named(data, key)} in layer ${layer}, head ${head}`;
    if (!hasOperands(data, layer)) {
      fill(picture, hint(whyMissing(data)));
      return fill(table);
    }
    const terms = termsOf(data, choice);
    if (width) fill(picture, chart(data, terms, width));
    const order = button(bySize ? "Sort by dimension" : "Sort by size", () => { bySize = !bySize; show(); });
    fill(table, order, region("Terms of the attention score", termTable(data, choice, terms, bySize), "tall limited"));
  };
  choice.on(["token", "key", "layer", "head", "data"], show);
  onWidth(byId("terms"), (known) => { width = known; show(); });
}

// Rotary positions turn dimensions i and i + E/2 together, as pair i.
const pairOf = (data, i) => (data.position === "rotary" ? i % (data.shape.headWidth / 2) : null);

function termsOf(data, { layer, head, token, key }) {
  const query = queryVector(data, layer, head, token), other = keyVector(data, layer, head, key);
  return query.map((q, i) => ({ i, q, k: other[i], term: q * other[i], pair: pairOf(data, i) }));
}

// One bar per dimension; the two bars of a rotary pair are neighbors.
function chart(data, terms, width) {
  const sorted = data.position === "rotary" ? [...terms].sort((a, b) => a.pair - b.pair || a.i - b.i) : terms;
  const values = terms.map(({ term }) => term), high = Math.max(0, ...values), low = Math.min(0, ...values);
  const step = width / terms.length, scale = (HEIGHT - 2 * MARGIN) / (high - low || 1), middle = MARGIN + high * scale;
  const bars = sorted.map(({ i, term, pair }, place) => draw("rect", {
    x: place * step + (pair !== null && place % 2 === 0 ? 0.25 * step : 0.05 * step), width: 0.7 * step,
    y: term < 0 ? middle : middle - term * scale, height: Math.max(0.5, Math.abs(term) * scale), class: term < 0 ? "below" : "above",
  }, draw("title", {}, `dimension ${i}${pair === null ? "" : `, pair ${pair}`}: ${four(term)}`)));
  return draw("svg", { class: "terms", width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": "One bar for each term of q·k; the table below has the numbers" },
    draw("line", { x1: 0, x2: width, y1: middle, y2: middle, class: "baseline" }), ...bars);
}

function termTable(data, { layer, head, token, key }, terms, bySize) {
  const { headWidth } = data.shape, address = (name, ...index) => inCore(data, layer, name, ...index), group = groupOf(data, head);
  const isRotary = data.position === "rotary";
  const sorted = bySize ? [...terms].sort((a, b) => Math.abs(b.term) - Math.abs(a.term)) : terms;
  const number = (value, address) => numberCell(four(value), address);
  const largest = Math.max(...terms.map(({ term }) => Math.abs(term))) || 1;
  const line = ({ i, q, k, term, pair }) => make("tr", {}, make("th", { scope: "row" }, String(i)), ...(isRotary ? [numberCell(String(pair))] : []),
    number(q, address("query", head, token, i)), number(k, address("key", group, key, i)), number(term, address("weights.terms", head, token, key, i)), signedBar(term / largest));
  const sum = terms.reduce((total, { term }) => total + term, 0), scaled = sum / Math.sqrt(headWidth);
  const total = (words, value, name) => make("tr", { class: "total" }, make("th", { scope: "row", colspan: isRotary ? 4 : 3 }, words), number(value, address(name, head, token, key)), make("td", {}));
  const hidden = isVisible(data, layer, token, key) ? "" : " The mask hides this key from the token, so its weight is 0.";
  const words = `The attention score is the sum of the products of query and key, dimension by dimension${isRounded(data, layer) ? ", from vectors to four decimals" : ""}.${isRotary ? " Rotary positions turn the two dimensions of a pair together; their bars are neighbors." : ""}${hidden}`;
  return make("table", { class: "bars signed" }, caption(words),
    tableHead(...headings(["Dimension", ...(isRotary ? ["Pair"] : []), "q", "k", "q · k"]), barHeading()),
    make("tbody", {}, ...sorted.map(line), total("Sum: the attention score", sum, "scores"), total("divided by √E: the scaled attention score", scaled, "scaled")));
}

// A cell with a bar to the right of the middle for a positive share, to the left for a negative one.
export const signedBar = (share) => make("td", { class: "bar", "aria-hidden": "true" }, make("div", {},
  make("span", { class: share < 0 ? "below" : "above", style: `width:${50 * Math.min(1, Math.abs(share))}%` })));
