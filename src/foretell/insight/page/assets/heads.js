// Attention of all heads as small maps, and of the chosen head as a large map.
import { hiddenPixel, inkOn, onTheme, weightColor, weightPixels } from "./colors.js";
import { firstKey, inCore, isKept, isVisible, weight, weightRow } from "./data.js";
import { button, byId, fill, fitCanvas, hint, make, onArrows, onWidth } from "./dom.js";
import { four, named, short } from "./format.js";
import { frame, held, inks, makeHeatMap } from "./heatmap.js";
import { bringIntoSight } from "./tokens.js";

// Every head of every layer as a small map. If a text has more tokens than cells, each cell shows its largest weight.
const THUMB_CELLS = 64; // cells per side of a small map
// Many heads or layers are drawn small, to leave room for the large map
const thumbSize = ({ heads, layers }) => Math.round(Math.min(88, Math.max(28, Math.min(400 / heads, 300 / layers))));

export function showGrid(data, choice) {
  const { layers, heads } = data.shape;
  const T = data.tokens.length;
  const side = Math.min(T, THUMB_CELLS);
  const buttons = [];
  const lines = Array.from({ length: layers }, (_, layer) => make("div", { role: "row", class: "heads-row" },
    make("span", { role: "rowheader", class: "row-label" }, make("span", { class: "sr" }, "layer "), String(layer)),
    ...Array.from({ length: heads }, (_, head) => {
      const words = `layer ${layer}, head ${head}`;
      buttons.push(button(make("canvas", { width: side, height: side, "aria-hidden": "true" }), () => choice.set({ layer, head }), { class: "thumb", "aria-label": words, title: words }));
      return make("span", { role: "gridcell" }, buttons.at(-1));
    })));
  const columns = make("div", { role: "row", class: "heads-row labels" }, make("span", { role: "columnheader", class: "row-label corner" }, "layer"),
    ...Array.from({ length: heads }, (_, head) => make("span", { role: "columnheader", class: "column-label" }, make("span", { class: "sr" }, "head "), String(head))));
  const grid = make("div", { role: "grid", "aria-label": "Heads: a row for each layer", class: "heads", style: `--heads:${heads};--thumb:${thumbSize(data.shape)}px` }, columns, ...lines);
  fill(byId("grid"), grid, hint(heads * layers > 1 ? "Rows are layers, columns are heads." : "This model has one head."));

  const choose = (layer, head) => { choice.set({ layer, head }); buttons[choice.layer * heads + choice.head].focus(); };
  onArrows(grid, (right, down) => choose(choice.layer + down, choice.head + right), (first) => choose(choice.layer, first ? 0 : heads - 1));
  choice.listen((changed) => {
    if (!changed.has("layer") && !changed.has("head")) return;
    buttons.forEach((each, i) => {
      const chosen = i === choice.layer * heads + choice.head;
      each.setAttribute("aria-pressed", chosen);
      each.tabIndex = chosen ? 0 : -1;
    });
    bringIntoSight(byId("grid"), buttons[choice.layer * heads + choice.head]);
  });
  // One layer at a time, so that the page stays responsive
  const paintFrom = (layer) => {
    for (let head = 0; head < heads; head++) paintThumb(data, buttons[layer * heads + head].firstChild, layer, head, side);
    if (layer + 1 < layers) setTimeout(() => paintFrom(layer + 1));
  };
  choice.listen((changed) => {
    if (!changed.has("data")) return;
    data.all(...lines.map((_, layer) => `thumbs.${layer}`)); // a live page fetches them together
    setTimeout(() => paintFrom(0));
  });
  onTheme(() => paintFrom(0));
}

function paintThumb(data, canvas, layer, head, side) {
  const largest = thumbCells(data, layer, head, side);
  if (largest) canvas.getContext("2d").putImageData(colored(largest, side, side), 0, 0);
}

// A live page gets small maps, so that it need not fetch the attention of all layers.
function thumbCells(data, layer, head, side) {
  const T = data.tokens.length;
  const small = data.get(`thumbs.${layer}`);
  if (small) return small.whole.subarray(head * side * side, (head + 1) * side * side);
  if (!data.has(`attention.${layer}`)) return null;
  const largest = new Int32Array(side * side).fill(-1);
  for (let query = 0; query < T; query++) {
    if (!isKept(data, query)) continue;
    const y = Math.floor((query * side) / T) * side;
    const weights = weightRow(data, layer, head, query);
    const first = firstKey(data, layer, query);
    for (let i = 0; i < weights.length; i++) {
      const cell = y + Math.floor(((first + i) * side) / T);
      if (weights[i] > largest[cell]) largest[cell] = weights[i];
    }
  }
  return largest;
}

// An image of weights in ten-thousandths; -1 is hidden.
function colored(values, width, height) {
  const image = new ImageData(width, height);
  const pixels = new Int32Array(image.data.buffer);
  const colors = weightPixels(), hidden = hiddenPixel();
  for (let i = 0; i < values.length; i++) pixels[i] = values[i] < 0 ? hidden : colors[values[i]];
  return image;
}

// The chosen head as a large map: hovering or arrow keys read a cell, a click or Enter chooses its token and key.
const LARGEST = 620; // pixels per side
const LEAST_CELL = 4; // pixels per token of a long text, if the page is wide enough
const READABLE = 13; // pixels per line of text
const ROOM_FOR_NUMBER = 46;

export function showMap(data, choice) {
  const T = data.tokens.length;
  let layout = null, cells = null;

  const paintCells = () => { cells = headImage(data, choice.layer, choice.head); };
  const paint = () => { if (layout && cells) paintMap(data, choice, canvas, layout, cells, cursor()); };
  const words = "Attention of the chosen head. Arrow keys move over the cells, Enter chooses the row’s token.";
  const { canvas, cursor } = makeHeatMap({ id: "map-canvas", "aria-label": words }, byId("reading"), {
    cellAt: (x, y) => {
      const key = Math.floor((x - layout.left) / layout.cell), token = Math.floor((y - layout.top) / layout.cell);
      return key >= 0 && key < T && token >= 0 && token < T ? { token, key } : null;
    },
    start: () => ({ token: choice.token, key: choice.key }),
    moved: ({ token, key }, right, down) => ({ token: held(token + down, T), key: held(key + right, T) }),
    show: (cell) => choice.point(cell),
    choose: (cell) => choice.set(cell),
  });
  fill(byId("map"), canvas);

  choice.listen((changed) => {
    if (["layer", "head", "data"].some((name) => changed.has(name))) paintCells();
    if (changed.has("layer") || changed.has("head")) {
      byId("head-title").textContent = `Layer ${choice.layer}, head ${choice.head}`;
    }
    fill(byId("reading"), ...reading(data, choice));
    paint();
  });
  onTheme(() => { paintCells(); paint(); showScale(); });
  onWidth(byId("map"), (width) => { layout = mapLayout(data, width); Object.assign(canvas.dataset, { left: layout.left, top: layout.top, cell: layout.cell }); paint(); });
  showScale();
}

// Sizes of margin and cells; token labels are shown if there is room.
function mapLayout(data, width) {
  const T = data.tokens.length;
  const high = innerWidth < 900 ? LARGEST : Math.max(innerHeight - 596, 300, LEAST_CELL * T); // in one view with the other cards
  const most = Math.min(LARGEST, high), labels = Math.min(most, width) / T > READABLE + 3;
  const longest = Math.max(...data.tokens.map((token) => short(token.text, 10).length));
  const margin = labels ? Math.min(90, 14 + 7 * longest) : 30;
  const side = Math.min(most - margin, width - margin - 2);
  return { left: margin, top: margin, side, cell: side / T, labels, width: margin + side + 2 };
}

// One pixel per cell.
function headImage(data, layer, head) {
  const T = data.tokens.length;
  const values = new Int32Array(T * T).fill(-1);
  for (let query = data.firstQuery; query < T; query++) values.set(weightRow(data, layer, head, query), query * T + firstKey(data, layer, query));
  const canvas = make("canvas", { width: T, height: T });
  canvas.getContext("2d").putImageData(colored(values, T, T), 0, 0);
  return canvas;
}

function paintMap(data, choice, canvas, layout, cells, cursor) {
  const { left, top, side, cell } = layout, ink = inks();
  const context = fitCanvas(canvas, layout.width, layout.top + side + 2);
  context.imageSmoothingEnabled = false;
  context.drawImage(cells, left, top, side, side);
  context.font = `12px ${ink("--sans")}`;
  if (cell >= ROOM_FOR_NUMBER) paintNumbers(data, choice, context, layout);
  paintLabels(data, choice, context, layout, ink);
  const around = cell < 8 ? 2 : 0; // a frame would hide small cells
  frame(context, ink("--accent"), left, top + choice.token * cell - around, side, cell + 2 * around);
  if (!choice.under) frame(context, ink("--accent"), left + choice.key * cell, top + choice.token * cell - around, cell, cell + 2 * around);
  if (choice.under?.key !== undefined && choice.under?.key !== null) {
    frame(context, ink("--text"), left + choice.under.key * cell, top + choice.under.token * cell, cell, cell, cursor ? 2 : 1.5);
  }
}

function paintNumbers(data, choice, context, { left, top, cell }) {
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (let query = 0; query < data.tokens.length; query++) {
    for (let key = firstKey(data, choice.layer, query); key <= query; key++) {
      if (!isKept(data, query)) continue;
      const own = weight(data, choice.layer, choice.head, query, key);
      context.fillStyle = inkOn(own);
      context.fillText(four(own), left + (key + 0.5) * cell, top + (query + 0.5) * cell);
    }
  }
}

function paintLabels(data, choice, context, layout, ink) {
  const T = data.tokens.length;
  const every = layout.labels ? 1 : Math.max(1, 2 ** Math.ceil(Math.log2(28 / layout.cell)));
  const text = (i) => (layout.labels ? short(data.tokens[i].text, 10) : String(i));
  const token = choice.shownToken(), key = choice.shownKey();
  for (let i = 0; i < T; i += every) {
    const middle = (i + 0.5) * layout.cell;
    write(context, text(i), layout.left - 6, layout.top + middle, "right", 0, ink(i === token ? "--text" : "--muted"));
    write(context, text(i), layout.left + middle, layout.top - 8, layout.labels ? "left" : "center", layout.labels ? -Math.PI / 2 : 0, ink(i === key ? "--text" : "--muted"));
  }
}

function write(context, text, x, y, align, turn, color) {
  context.save();
  context.translate(x, y);
  context.rotate(turn);
  context.fillStyle = color;
  context.textBaseline = "middle";
  context.textAlign = align;
  context.fillText(text, 0, 0);
  context.restore();
}

function reading(data, choice) {
  const token = choice.shownToken();
  const key = choice.shownKey();
  if (key === null) return [`${named(data, token)} is under the pointer.`];
  const pair = `${named(data, token)} → ${named(data, key)}`;
  if (!isVisible(data, choice.layer, token, key)) return [`${pair}: hidden: the key ${key > token ? "comes later" : "is outside the window"}`];
  if (!isKept(data, token)) return [`${pair}: not in this page`];
  const address = inCore(data, choice.layer, "weights", choice.head, token, key);
  return [`${pair}: `, make("span", { "data-address": address }, four(weight(data, choice.layer, choice.head, token, key)))];
}

function showScale() {
  const swatch = (text, style) => make("span", { class: "swatch" }, make("i", { style }), text);
  fill(byId("scale"), make("p", { class: "scale", "aria-label": "Color scale" },
    ...[0, 0.01, 0.05, 0.2, 0.5, 1].map((value) => swatch(String(value), `background:${weightColor(value)}`)),
    swatch("hidden", "background:var(--hidden)")));
}
