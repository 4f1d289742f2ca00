// The chosen head, large: hover or arrow keys read a cell, a click or Enter chooses its token and key.
import { at, fill, fitCanvas, make, onWidth } from "page/dom.js";
import { colored } from "page/grid.js";
import { inkOn, weightColor } from "page/colors.js";
import { four, named, short } from "page/format.js";
import { onArrows } from "page/keys.js";
import { onTheme } from "page/theme.js";
import { firstKey, isKept, isVisible, row, weight } from "page/weights.js";

const LARGEST = 620; // pixels on a side
const READABLE = 13; // pixels a line of text needs
const ROOM_FOR_NUMBER = 46;

export function showMap(data, choice) {
  const T = data.tokens.length;
  const canvas = make("canvas", { id: "map-canvas", tabindex: 0, role: "application", "aria-roledescription": "heat map",
    "aria-label": "Attention of the chosen head. Arrow keys move over the cells, Enter chooses the row’s token.", "aria-describedby": "reading" });
  fill(at("map"), canvas);
  let place = null, cells = null, cursor = null;

  const paintCells = () => { cells = headImage(data, choice.layer, choice.head); };
  const paint = () => { if (place && cells) paintMap(data, choice, canvas, place, cells, cursor); };
  const cellAt = (event) => {
    const box = canvas.getBoundingClientRect();
    const key = Math.floor((event.clientX - box.left - place.left) / place.cell);
    const token = Math.floor((event.clientY - box.top - place.top) / place.cell);
    return key >= 0 && key < T && token >= 0 && token < T ? { token, key } : null;
  };
  const read = (cell) => { choice.point(cell); };

  canvas.addEventListener("pointermove", (event) => read(cellAt(event)));
  canvas.addEventListener("pointerdown", (event) => read(cellAt(event)));
  canvas.addEventListener("pointerleave", () => read(null));
  canvas.addEventListener("click", (event) => { const cell = cellAt(event); if (cell) choice.set(cell); });
  const move = (right, down) => {
    cursor = cursor ?? { token: choice.token, key: choice.key };
    cursor = { token: hold(cursor.token + down, T), key: hold(cursor.key + right, T) };
    read(cursor);
  };
  onArrows(canvas, move, (first) => move(first ? -T : T, 0));
  canvas.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); if (cursor) choice.set(cursor); }
    if (event.key === "Escape") { cursor = null; read(null); }
  });
  canvas.addEventListener("blur", () => { cursor = null; read(null); });

  choice.listen((changed) => {
    if (changed.has("layer") || changed.has("head")) paintCells();
    if (changed.has("layer") || changed.has("head")) {
      fill(at("head-title"), `Layer ${choice.layer}, head ${choice.head} `, make("code", {}, `trunk.blocks.${choice.layer}.attention.core.weights[0, ${choice.head}]`));
    }
    at("reading").textContent = reading(data, choice);
    paint();
  });
  onTheme(() => { paintCells(); paint(); showScale(); });
  onWidth(at("map"), (width) => { place = layOut(data, width); Object.assign(canvas.dataset, { left: place.left, top: place.top, cell: place.cell }); paint(); });
  showScale();
}

const hold = (value, size) => Math.min(size - 1, Math.max(0, value));

// Labels take a margin where they can be read; the cells share the rest.
function layOut(data, width) {
  const T = data.tokens.length;
  const labels = Math.min(LARGEST, width) / T > READABLE + 3;
  const longest = Math.max(...data.tokens.map((token) => short(token.text, 10).length));
  const margin = labels ? Math.min(90, 14 + 7 * longest) : 30;
  const side = Math.min(LARGEST, width - margin - 2);
  return { left: margin, top: margin, side, cell: side / T, labels, width: margin + side + 2 };
}

// One pixel a cell.
function headImage(data, layer, head) {
  const T = data.tokens.length;
  const values = new Int32Array(T * T).fill(-1);
  for (let query = data.firstQuery; query < T; query++) values.set(row(data, layer, head, query), query * T + firstKey(data, layer, query));
  const canvas = make("canvas", { width: T, height: T });
  canvas.getContext("2d").putImageData(colored(values, T, T), 0, 0);
  return canvas;
}

function paintMap(data, choice, canvas, place, cells, cursor) {
  const { left, top, side, cell } = place;
  const style = getComputedStyle(document.documentElement);
  const ink = (name) => style.getPropertyValue(name);
  const context = fitCanvas(canvas, place.width, place.top + side + 2);
  context.imageSmoothingEnabled = false;
  context.drawImage(cells, left, top, side, side);
  context.font = `12px ${ink("--sans")}`;
  if (cell >= ROOM_FOR_NUMBER) paintNumbers(data, choice, context, place);
  paintLabels(data, choice, context, place, ink);
  const around = cell < 8 ? 2 : 0; // a frame on small cells would hide them
  frame(context, ink("--accent"), 2, left, top + choice.token * cell - around, side, cell + 2 * around);
  if (!choice.under) frame(context, ink("--accent"), 2, left + choice.key * cell, top + choice.token * cell - around, cell, cell + 2 * around);
  if (choice.under?.key !== undefined && choice.under?.key !== null) {
    frame(context, ink("--text"), cursor ? 2 : 1.5, left + choice.under.key * cell, top + choice.under.token * cell, cell, cell);
  }
}

function frame(context, color, width, x, y, w, h) {
  context.strokeStyle = color;
  context.lineWidth = width;
  context.strokeRect(x, y, Math.max(w, 3), Math.max(h, 3));
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

function paintLabels(data, choice, context, place, ink) {
  const T = data.tokens.length;
  const every = place.labels ? 1 : Math.max(1, 2 ** Math.ceil(Math.log2(28 / place.cell)));
  const text = (i) => (place.labels ? short(data.tokens[i].text, 10) : String(i));
  const token = choice.shownToken(), key = choice.shownKey();
  for (let i = 0; i < T; i += every) {
    const middle = (i + 0.5) * place.cell;
    write(context, text(i), place.left - 6, place.top + middle, "right", 0, ink(i === token ? "--text" : "--muted"));
    write(context, text(i), place.left + middle, place.top - 8, place.labels ? "left" : "center", place.labels ? -Math.PI / 2 : 0, ink(i === key ? "--text" : "--muted"));
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
  if (key === null) return `${named(data, token)} under the pointer.`;
  const pair = `${named(data, token)} → ${named(data, key)}`;
  if (!isVisible(data, choice.layer, token, key)) return `${pair}: hidden, ${key > token ? "it comes later" : "outside the window"}`;
  if (!isKept(data, token)) return `${pair}: not in this page`;
  return `${pair}: ${four(weight(data, choice.layer, choice.head, token, key))}`;
}

function showScale() {
  const swatch = (text, style) => make("span", { class: "swatch" }, make("i", { style }), text);
  fill(at("scale"), make("p", { class: "scale", "aria-label": "Colour scale" },
    ...[0, 0.01, 0.05, 0.2, 0.5, 1].map((value) => swatch(String(value), `background:${weightColor(value)}`)),
    swatch("hidden", "background:var(--hidden)")));
}
