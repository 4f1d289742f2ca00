// The residual stream of the chosen token: norms and vectors.
import { streamVector, whyMissing } from "./data.js";
import { byId, caption, draw, fill, headings, make, numberCell, onWidth, region, tableHead } from "./dom.js";
import { addressOf, four, named } from "./format.js";
import { makeStrips } from "./strips.js";

// The norm of the stream at every point: the chosen token as a line, the range of all tokens as a band.
const CHART_HEIGHT = 230, LEFT = 46, BOTTOM = 30, TOP = 12, RIGHT = 12;

export function showSizes(data, choice) {
  const picture = make("div"), numbers = region("Norms as a table", [], "short");
  fill(byId("sizes"), picture, numbers);
  let width = 0;
  const show = () => {
    const sizes = data.get("stream.sizes");
    if (!sizes) return;
    const range = data.places.map((_, index) => spread(sizes.vector(index)));
    if (width) fill(picture, chart(data, sizes, range, choice, width));
    fill(numbers, normTable(data, sizes, range, choice.token));
  };
  choice.on(["token", "layer"], show);
  onWidth(byId("sizes"), (known) => { width = known; show(); });
}

// The smallest norm, the median and the largest, with their tokens in `tokens`.
function spread(values) {
  const sorted = Array.from(values, (_, token) => token).sort((a, b) => values[a] - values[b]);
  const tokens = [sorted[0], sorted[Math.floor(sorted.length / 2)], sorted.at(-1)], [low, middle, high] = tokens.map((token) => values[token]);
  return { low, middle, high, tokens };
}

function chart(data, sizes, range, choice, width) {
  const count = data.places.length;
  const top = Math.max(...range.map(({ high }) => high)) || 1;
  const x = (index) => LEFT + (count === 1 ? 0 : (index * (width - LEFT - RIGHT)) / (count - 1));
  const y = (value) => TOP + (1 - value / top) * (CHART_HEIGHT - TOP - BOTTOM);
  const points = (read) => range.map((values, index) => `${x(index)},${y(read(values, index))}`);
  const own = points((_, index) => sizes.at(index, choice.token));
  const band = [...points(({ high }) => high), ...points(({ low }) => low).reverse()].join(" ");
  const dots = data.places.map((place, i) => draw("circle", { cx: x(i), cy: y(sizes.at(i, choice.token)), r: place.layer === choice.layer ? 5.5 : 3.5, class: place.layer === choice.layer ? "dot chosen" : "dot" },
    draw("title", {}, `${place.label}: ${four(sizes.at(i, choice.token))}`)));
  const ticks = niceTicks(0, top).map((value) => draw("g", { class: "tick" },
    draw("line", { x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }), draw("text", { x: LEFT - 6, y: y(value), "text-anchor": "end", "dominant-baseline": "middle" }, String(value))));
  const every = Math.ceil((data.shape.layers + 1) / Math.max(2, (width - LEFT) / 48));
  const layers = data.places.flatMap((place, i) => (place.layer === null || (place.layer + 1) % every ? [] : [
    draw("text", { x: x(i), y: CHART_HEIGHT - 8, "text-anchor": place.layer < 0 ? "start" : "middle", class: "tick-label" }, place.layer < 0 ? "embed" : String(place.layer))]));
  return draw("svg", { class: "chart", width, height: CHART_HEIGHT, viewBox: `0 0 ${width} ${CHART_HEIGHT}`, role: "img", "aria-label": `Norm of the vector of ${named(data, choice.token)} by layer; the table below has the numbers` },
    ...ticks, draw("polygon", { points: band, class: "band" }), draw("polyline", { points: points(({ middle }) => middle).join(" "), class: "median" }),
    draw("polyline", { points: own.join(" "), class: "own" }), ...dots, ...layers);
}

// About five round numbers between two.
export function niceTicks(low, high) {
  const rough = (high - low) / 4 || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power, first = Math.ceil(low / step);
  return Array.from({ length: Math.floor(high / step) - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(6)));
}

function normTable(data, sizes, range, token) {
  const line = (place, i) => make("tr", {}, make("th", { scope: "row", title: place.name }, place.label),
    ...[token, ...range[i].tokens].map((each) => numberCell(four(sizes.at(i, each)), addressOf(`${place.name}.vector_norm`, each))));
  return make("table", {}, caption(`Euclidean norm. Line: ${named(data, token)}; band: all tokens; dashes: their median.`),
    tableHead(...headings(["Point", "Chosen", "Minimum", "Median", "Maximum"])),
    make("tbody", {}, ...data.places.map(line)));
}

// The vectors of the chosen token: the embedding and the stream at every point.
export function showVectors(data, choice) {
  const strips = makeStrips("vectors", "The vectors of the chosen token, one row per point");
  fill(byId("vectors"), strips.element);
  const show = () => {
    byId("vectors-title").textContent = `The stream’s vectors at ${named(data, choice.token)}`;
    strips.show(vectorsOf(data, choice.token), whyMissing(data));
  };
  choice.on(["token", "data"], show);
}

// All vectors that the page has for a token, with their addresses.
function vectorsOf(data, token) {
  const read = (section) => data.get(section)?.vector(token);
  const [embedding, ...points] = data.places.map(({ label, name }, point) => [label, name, () => streamVector(data, point, token)]);
  const [label, name] = points.at(-1);
  const lines = [["word", "embed.token", () => read("embed.words")], ["position", "embed.position", () => read("embed.positions")],
    [data.get("embed.positions") ? "word + position" : "embedding", ...embedding.slice(1)], ...points.slice(0, -1), [label, name, () => points.at(-1)[2]() ?? read("final")]];
  return lines.map(([label, name, values]) => ({ label, values: values(), address: (i) => addressOf(name, token, i) })).filter(({ values }) => values);
}
