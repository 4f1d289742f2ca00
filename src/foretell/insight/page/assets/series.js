// The values that a forecaster has read, and the distribution of the next one, in their unit.
import { softmax } from "./data.js";
import { byId, caption, draw, fill, headings, make, numberCell, onWidth, region, tableHead } from "./dom.js";
import { named, probability, value as inDigits } from "./format.js";
import { niceTicks } from "./stream.js";

const HEIGHT = 280, LEFT = 62, TOP = 12, BOTTOM = 26, SIDE = 0.24; // pixels; the share of the width for the distribution
const QUANTILES = [0.05, 0.25, 0.5, 0.75, 0.95];
const MEAN = "next_value.mean"; // the address
export const quantileOf = (share) => `next_value.quantile(${share})`; // the address
const SEEN = 0.995; // of the distribution on either side of the picture
const STEP = 4; // pixels of a bar

// The values of the tokens, null for a missing one, and the distribution of the next; undefined while they are being read.
export function seriesOf(data) {
  const levels = data.get("levels")?.whole, logits = data.get("logits")?.whole;
  if (!levels || !logits) return undefined;
  const { shares } = softmax(Float64Array.from(logits.subarray(0, levels.length)));
  const quantile = (wanted) => {
    let sum = 0;
    const index = shares.findIndex((share) => (sum += share) >= wanted);
    return levels[index < 0 ? levels.length - 1 : index];
  };
  return { values: data.tokens.map(({ value }) => value), levels, shares, quantile, mean: shares.reduce((sum, share, id) => sum + share * levels[id], 0) };
}

export function showSeries(data, choice) {
  if (!data.hasLevels) return;
  const picture = make("div"), numbers = region("The next value");
  fill(byId("series"), picture, numbers);
  let width = 0;
  const show = () => {
    const series = seriesOf(data);
    if (!series) return;
    if (width) fill(picture, chart(data, choice, series, width));
    fill(numbers, table(data, series));
  };
  choice.on(["token", "data"], show);
  onWidth(byId("series"), (known) => { width = known; show(); });
}

function chart(data, choice, { values, levels, shares, quantile }, width) {
  const known = values.filter((value) => value !== null), ends = [quantile(1 - SEEN), quantile(SEEN)];
  const low = Math.min(...known, ends[0]), high = Math.max(...known, ends[1]), range = high - low || 1;
  const split = LEFT + (width - LEFT) * (1 - SIDE), x = (i) => LEFT + 8 + (values.length === 1 ? 0 : (i * (split - LEFT - 20)) / (values.length - 1));
  const y = (value) => TOP + (1 - (value - low) / range) * (HEIGHT - TOP - BOTTOM);
  const at = (event) => {
    const box = event.currentTarget.getBoundingClientRect(), step = values.length === 1 ? 1 : (split - LEFT - 20) / (values.length - 1);
    return Math.min(data.last, Math.max(0, Math.round((event.clientX - box.left - LEFT - 8) / step)));
  };
  const lines = runs(values).map((run) => draw("polyline", { class: "own", points: run.map((i) => `${x(i)},${y(values[i])}`).join(" ") }));
  const ticks = niceTicks(low, high).map((value) => draw("g", { class: "tick" },
    draw("line", { x1: LEFT, x2: width, y1: y(value), y2: y(value) }), draw("text", { x: LEFT - 6, y: y(value), "text-anchor": "end", "dominant-baseline": "middle" }, inDigits(value))));
  const places = niceTicks(0, Math.max(1, values.length - 1)).filter((i) => Number.isInteger(i) && i < values.length).map((i) => draw("text", { x: x(i), y: HEIGHT - 6, "text-anchor": "middle" }, String(i)));
  const chosen = values[choice.token] === null ? [] : [draw("circle", { cx: x(choice.token), cy: y(values[choice.token]), r: 5, class: "dot chosen" }, draw("title", {}, named(data, choice.token)))];
  return draw("svg", { class: "chart series", width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": "The values by position, and on the right the distribution of the next one; the table below has its numbers",
    onclick: (event) => choice.set({ token: at(event) }), onpointermove: (event) => choice.point({ token: at(event) }), onpointerleave: () => choice.point(null) },
    ...ticks, ...places, ...lines, ...chosen, draw("line", { class: "baseline", x1: split, x2: split, y1: TOP, y2: HEIGHT - BOTTOM }),
    ...bars(levels, shares, y, split, width), draw("text", { x: split + 4, y: HEIGHT - 6 }, "next value"));
}

// The positions of values between missing ones.
function runs(values) {
  const found = [[]];
  values.forEach((value, i) => (value === null ? found.push([]) : found.at(-1).push(i)));
  return found.filter((run) => run.length);
}

// One bar for each few pixels, as long as the probability of the values there.
function bars(levels, shares, y, left, width) {
  const rows = new Map();
  shares.forEach((share, id) => {
    const row = Math.floor(y(levels[id]) / STEP);
    if (row >= 0 && row * STEP < HEIGHT) rows.set(row, (rows.get(row) ?? 0) + share);
  });
  const most = Math.max(...rows.values()) || 1;
  return [...rows].map(([row, share]) => draw("rect", { class: "likely", x: left + 1, y: row * STEP, width: ((width - left - 4) * share) / most, height: STEP - 0.5 }, draw("title", {}, `probability ${probability(share)}`)));
}

function table(data, { mean, quantile }) {
  const columns = [["mean", mean, MEAN], ...QUANTILES.map((share) => [share === 0.5 ? "median" : `${100 * share}% are below`, quantile(share), quantileOf(share)])];
  const words = `The next value, after ${named(data, data.last)}: the model’s own distribution, before any calibration or naive part of a forecast. A missing value is never drawn.`;
  return make("table", {}, caption(words),
    tableHead(...headings(columns.map(([name]) => name), 0)),
    make("tbody", {}, make("tr", {}, ...columns.map(([, each, address]) => numberCell(inDigits(each), address)))));
}
