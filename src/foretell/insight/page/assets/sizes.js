// The length of the stream's vector at every place: the chosen token as a line, the range of all tokens as a band.
import { at, caption, draw, fill, make, onWidth } from "page/dom.js";
import { four, named } from "page/format.js";

const HEIGHT = 230, LEFT = 46, BOTTOM = 30, TOP = 12, RIGHT = 12;

export function showSizes(data, choice) {
  const sizes = data.get("stream.sizes");
  const picture = make("div"), numbers = make("div", { class: "scroll short", tabindex: 0, role: "region", "aria-label": "Lengths as a table" });
  fill(at("sizes"), picture, numbers);
  const range = data.places.map((_, place) => spread(sizes.vector(place)));
  let width = 0;
  const show = () => {
    if (width) fill(picture, chart(data, sizes, range, choice, width));
    fill(numbers, table(data, sizes, range, choice.token));
  };
  choice.listen((changed) => (changed.has("token") || changed.has("layer")) && show());
  onWidth(at("sizes"), (known) => { width = known; show(); });
}

function spread(values) {
  const sorted = Float64Array.from(values).sort();
  return { low: sorted[0], middle: sorted[Math.floor(sorted.length / 2)], high: sorted[sorted.length - 1] };
}

function chart(data, sizes, range, choice, width) {
  const count = data.places.length;
  const top = Math.max(...range.map((one) => one.high)) || 1;
  const x = (place) => LEFT + (count === 1 ? 0 : (place * (width - LEFT - RIGHT)) / (count - 1));
  const y = (value) => TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM);
  const points = (read) => range.map((one, place) => `${x(place)},${y(read(one, place))}`);
  const own = points((_, place) => sizes.at(place, choice.token));
  const band = [...points((one) => one.high), ...points((one) => one.low).reverse()].join(" ");
  const dots = data.places.map((place, i) => draw("circle", { cx: x(i), cy: y(sizes.at(i, choice.token)), r: place.layer === choice.layer ? 5.5 : 3.5, class: place.layer === choice.layer ? "dot chosen" : "dot" },
    draw("title", {}, `${place.label}: ${four(sizes.at(i, choice.token))}`)));
  const ticks = niceTicks(top).map((value) => draw("g", { class: "tick" },
    draw("line", { x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }), draw("text", { x: LEFT - 6, y: y(value), "text-anchor": "end", "dominant-baseline": "middle" }, String(value))));
  const every = Math.ceil((data.shape.layers + 1) / Math.max(2, (width - LEFT) / 48));
  const layers = data.places.flatMap((place, i) => (place.layer === null || (place.layer + 1) % every ? [] : [
    draw("text", { x: x(i), y: HEIGHT - 8, "text-anchor": place.layer < 0 ? "start" : "middle", class: "tick-label" }, place.layer < 0 ? "embed" : String(place.layer))]));
  return draw("svg", { class: "chart", width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": `Length of the vector of ${named(data, choice.token)} by layer; the table below has the numbers` },
    ...ticks, draw("polygon", { points: band, class: "band" }), draw("polyline", { points: points((one) => one.middle).join(" "), class: "median" }),
    draw("polyline", { points: own.join(" "), class: "own" }), ...dots, ...layers);
}

function niceTicks(top) {
  const rough = top / 4, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((one) => one * power >= rough) * power;
  return Array.from({ length: Math.floor(top / step) + 1 }, (_, i) => Number((i * step).toPrecision(6)));
}

function table(data, sizes, range, token) {
  const line = (place, i) => make("tr", {}, make("th", { scope: "row", title: place.name }, place.label),
    ...[sizes.at(i, token), range[i].low, range[i].middle, range[i].high].map((value) => make("td", { class: "number" }, four(value))));
  return make("table", {}, caption(`Euclidean length. The line is ${named(data, token)}, the band all tokens, the dashes their median.`),
    make("thead", {}, make("tr", {}, ...["Place", "Chosen", "Least", "Median", "Most"].map((name, i) => make("th", { scope: "col", class: i ? "number" : "" }, name)))),
    make("tbody", {}, ...data.places.map(line)));
}
