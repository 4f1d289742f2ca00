// The residual stream of the chosen token: norms, logit lens, vectors.
import { inkOn, onTheme, signColor, weightColor } from "page/colors.js";
import { hasLens, readLens, whyMissing } from "page/data.js";
import { byId, caption, draw, fill, fitCanvas, make, onArrows, onWidth } from "page/dom.js";
import { four, named, quoted, short, storedProbability, visible } from "page/format.js";

// The norm of the stream at every point: the chosen token as a line, the range of all tokens as a band.
const CHART_HEIGHT = 230, LEFT = 46, BOTTOM = 30, TOP = 12, RIGHT = 12;

export function showSizes(data, choice) {
  const sizes = data.get("stream.sizes");
  const picture = make("div"), numbers = make("div", { class: "scroll short", tabindex: 0, role: "region", "aria-label": "Norms as a table" });
  fill(byId("sizes"), picture, numbers);
  const range = data.places.map((_, index) => spread(sizes.vector(index)));
  let width = 0;
  const show = () => {
    if (width) fill(picture, chart(data, sizes, range, choice, width));
    fill(numbers, normTable(data, sizes, range, choice.token));
  };
  choice.listen((changed) => (changed.has("token") || changed.has("layer")) && show());
  onWidth(byId("sizes"), (known) => { width = known; show(); });
}

function spread(values) {
  const sorted = Float64Array.from(values).sort();
  return { low: sorted[0], middle: sorted[Math.floor(sorted.length / 2)], high: sorted[sorted.length - 1] };
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
  const ticks = niceTicks(top).map((value) => draw("g", { class: "tick" },
    draw("line", { x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }), draw("text", { x: LEFT - 6, y: y(value), "text-anchor": "end", "dominant-baseline": "middle" }, String(value))));
  const every = Math.ceil((data.shape.layers + 1) / Math.max(2, (width - LEFT) / 48));
  const layers = data.places.flatMap((place, i) => (place.layer === null || (place.layer + 1) % every ? [] : [
    draw("text", { x: x(i), y: CHART_HEIGHT - 8, "text-anchor": place.layer < 0 ? "start" : "middle", class: "tick-label" }, place.layer < 0 ? "embed" : String(place.layer))]));
  return draw("svg", { class: "chart", width, height: CHART_HEIGHT, viewBox: `0 0 ${width} ${CHART_HEIGHT}`, role: "img", "aria-label": `Norm of the vector of ${named(data, choice.token)} by layer; the table below has the numbers` },
    ...ticks, draw("polygon", { points: band, class: "band" }), draw("polyline", { points: points(({ middle }) => middle).join(" "), class: "median" }),
    draw("polyline", { points: own.join(" "), class: "own" }), ...dots, ...layers);
}

function niceTicks(top) {
  const rough = top / 4, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
  return Array.from({ length: Math.floor(top / step) + 1 }, (_, i) => Number((i * step).toPrecision(6)));
}

function normTable(data, sizes, range, token) {
  const line = (place, i) => make("tr", {}, make("th", { scope: "row", title: place.name }, place.label),
    ...[sizes.at(i, token), range[i].low, range[i].middle, range[i].high].map((value) => make("td", { class: "number" }, four(value))));
  return make("table", {}, caption(`Euclidean norm. Line: ${named(data, token)}; band: all tokens; dashes: their median.`),
    make("thead", {}, make("tr", {}, ...["Point", "Chosen", "Minimum", "Median", "Maximum"].map((name, i) => make("th", { scope: "col", class: i ? "number" : "" }, name)))),
    make("tbody", {}, ...data.places.map(line)));
}

// The logit lens at the chosen token: the top next tokens after each layer.
export function showLens(data, choice) {
  const show = () => fill(byId("lens"), ...(hasLens(data, choice.token) ? [lensTable(data, choice)] : [make("p", { class: "hint" }, "The lens is kept for the last positions only.")]));
  choice.listen((changed) => (changed.has("token") || changed.has("layer")) && show());
  onTheme(show);
}

function lensTable(data, choice) {
  const next = data.tokens[choice.token + 1];
  const places = data.lensPlaces.map((index) => data.places[index]);
  const cell = ({ id, probability }) => make("td", {
    style: `background:${weightColor(probability)};color:${inkOn(probability)}`, title: `${visible(data.vocabulary[id])}: ${storedProbability(probability)}`,
    class: next?.id === id ? "follows" : "",
  }, make("bdi", {}, short(data.vocabulary[id], 10)), make("small", {}, storedProbability(probability)));
  const line = (place, index) => {
    const { top, following } = readLens(data, index, choice.token);
    return make("tr", place.layer === choice.layer ? { class: "chosen" } : {},
      make("th", { scope: "row" }, place.label), ...top.map(cell),
      ...(next ? [make("td", { class: "number" }, storedProbability(following))] : []));
  };
  const ranks = readLens(data, 0, choice.token).top.map((_, i) => make("th", { scope: "col" }, ["top", "2nd", "3rd"][i] ?? `${i + 1}th`));
  const words = `The last norm and the head applied to the stream at ${quoted(data.tokens[choice.token].text)} after each layer: the probability of the next token. Shades as in the attention maps.`
    + (next ? ` Underlined: ${quoted(next.text)}, the next token of the text; its probability is in the last column.` : "");
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Logit lens" },
    make("table", { class: "lens" }, caption(words),
      make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Point"), ...ranks, ...(next ? [make("th", { scope: "col", class: "number" }, "follows")] : []))),
      make("tbody", {}, ...places.map(line))));
}

// The vectors of the chosen token: the embedding and the stream at every point, one cell per number.
const LINE = 16;
const TABLE_NUMBERS = 16; // per row of the table; longer vectors show their first and last
const TABLE_ENDS = [6, 3];

export function showVectors(data, choice) {
  const canvas = make("canvas", { tabindex: 0, role: "application", "aria-roledescription": "heat map", "aria-describedby": "vector-reading",
    "aria-label": "The vectors of the chosen token, one row per point. Arrow keys move over the numbers." });
  const reading = make("p", { class: "reading", role: "status", "aria-live": "polite", id: "vector-reading" });
  const left = make("div", { class: "vector-labels", "aria-hidden": "true" });
  const numbers = make("div");
  let lines = [], width = 0, cursor = null;

  const describe = (cell) => {
    reading.classList.toggle("hint", !cell);
    reading.textContent = cell ? `${lines[cell.line].label}, dimension ${cell.dimension}: ${four(lines[cell.line].values[cell.dimension])}` : "Point at a number to read it. Blue is above zero, orange below; each row is scaled to its largest number.";
  };
  const cellAt = (event) => {
    const box = canvas.getBoundingClientRect();
    const line = Math.floor((event.clientY - box.top) / LINE), dimension = Math.floor(((event.clientX - box.left) / box.width) * data.shape.width);
    return lines[line] && dimension >= 0 && dimension < data.shape.width ? { line, dimension } : null;
  };
  canvas.addEventListener("pointermove", (event) => describe(cellAt(event)));
  canvas.addEventListener("pointerdown", (event) => describe(cellAt(event)));
  canvas.addEventListener("pointerleave", () => describe(null));
  const move = (right, down) => {
    cursor = cursor ?? { line: 0, dimension: 0 };
    cursor = { line: clamp(cursor.line + down, lines.length), dimension: clamp(cursor.dimension + right, data.shape.width) };
    paint();
    describe(cursor);
  };
  onArrows(canvas, move, (first) => move(first ? -data.shape.width : data.shape.width, 0));
  canvas.addEventListener("blur", () => { cursor = null; paint(); describe(null); });

  const paint = () => width && lines.length && paintLines(canvas, lines, width, cursor);
  const show = () => {
    lines = vectorsOf(data, choice.token);
    byId("vectors-title").textContent = `The stream’s vectors at ${named(data, choice.token)}`;
    strip.hidden = !lines.length;
    if (!lines.length) return fill(reading, whyMissing(data));
    fill(left, ...lines.map((line) => make("span", {}, line.label)));
    fill(numbers, vectorTable(lines));
    paint();
    describe(null);
  };
  const holder = make("div", { class: "strip-place" }, canvas);
  const strip = make("div", { class: "strip" }, left, holder);
  fill(byId("vectors"), strip, reading, numbers);
  choice.listen((changed) => changed.has("token") && show());
  onTheme(() => paint());
  onWidth(holder, (known) => { width = known; paint(); });
}

const clamp = (value, size) => Math.min(size - 1, Math.max(0, value));

// {label, values} of all vectors that the page has for a token.
function vectorsOf(data, token) {
  const held = [["embed.words", "word"], ["embed.positions", "position"], ["embed.sum", data.get("embed.positions") ? "word + position" : "embedding"]];
  data.places.forEach((place, i) => i && held.push([`stream.${i}`, place.label]));
  if (!data.get(`stream.${data.places.length - 1}`)) held.push(["final", data.places[data.places.length - 1].label]);
  return held.filter(([name]) => data.get(name)).map(([name, label]) => ({ label, values: data.get(name).vector(token) }));
}

// One pixel per number, then stretched.
function paintLines(canvas, lines, width, cursor) {
  const D = lines[0].values.length;
  const small = make("canvas", { width: D, height: lines.length });
  const image = new ImageData(D, lines.length);
  lines.forEach(({ values }, y) => {
    const largest = Math.max(...values.map(Math.abs)) || 1;
    values.forEach((value, x) => {
      image.data.set(signColor(value / largest), 4 * (y * D + x));
      image.data[4 * (y * D + x) + 3] = 255;
    });
  });
  small.getContext("2d").putImageData(image, 0, 0);
  const context = fitCanvas(canvas, width, lines.length * LINE);
  context.imageSmoothingEnabled = D > width;
  lines.forEach((_, y) => context.drawImage(small, 0, y, D, 1, 0, y * LINE, width, LINE - 1));
  if (cursor) {
    context.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--text");
    context.lineWidth = 2;
    context.strokeRect((cursor.dimension * width) / D, cursor.line * LINE, Math.max(4, width / D), LINE - 1);
  }
}

function vectorTable(lines) {
  const D = lines[0].values.length;
  const whole = D <= TABLE_NUMBERS;
  const shown = whole ? lines[0].values.map((_, i) => i) : [...Array(TABLE_ENDS[0]).keys(), null, ...Array.from({ length: TABLE_ENDS[1] }, (_, i) => D - TABLE_ENDS[1] + i)];
  const line = ({ label, values }) => make("tr", {}, make("th", { scope: "row" }, label), ...shown.map((i) => make("td", { class: "number" }, i === null ? "…" : four(values[i]))));
  return make("details", { open: whole || undefined }, make("summary", {}, "As a table"),
    make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Vectors as a table" },
      make("table", {}, caption(whole ? "All numbers of each vector." : `The first ${TABLE_ENDS[0]} and the last ${TABLE_ENDS[1]} of ${D} numbers.`),
        make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Vector"), ...shown.map((i) => make("th", { scope: "col", class: "number" }, i === null ? "…" : String(i))))),
        make("tbody", {}, ...lines.map(line)))));
}
