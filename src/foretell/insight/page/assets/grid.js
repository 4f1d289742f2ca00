// Every head of every layer as a small map; one is chosen. Where a map has more cells than pixels, the largest shows.
import { at, fill, make } from "page/dom.js";
import { hiddenPixel, weightPixels } from "page/colors.js";
import { onArrows } from "page/keys.js";
import { onTheme } from "page/theme.js";
import { firstKey, isKept, row } from "page/weights.js";

const LARGEST = 64; // cells on a side
// Many heads are small, so that the large map finds room beside them
const thumbSize = (heads) => Math.round(Math.min(110, Math.max(36, 470 / heads)));

export function showGrid(data, choice) {
  const { layers, heads } = data.shape;
  const T = data.tokens.length;
  const side = Math.min(T, LARGEST);
  const buttons = [];
  const lines = Array.from({ length: layers }, (_, layer) => make("div", { role: "row", class: "heads-row" },
    make("span", { role: "rowheader", class: "row-label" }, make("span", { class: "sr" }, "layer "), String(layer)),
    ...Array.from({ length: heads }, (_, head) => {
      const button = make("button", { type: "button", class: "thumb", "aria-label": `layer ${layer}, head ${head}`, title: `layer ${layer}, head ${head}`,
        onclick: () => choice.set({ layer, head }) }, make("canvas", { width: side, height: side, "aria-hidden": "true" }));
      buttons.push(button);
      return make("span", { role: "gridcell" }, button);
    })));
  const columns = make("div", { role: "row", class: "heads-row labels" }, make("span", { role: "columnheader", class: "row-label corner" }, "layer"),
    ...Array.from({ length: heads }, (_, head) => make("span", { role: "columnheader", class: "column-label" }, make("span", { class: "sr" }, "head "), String(head))));
  const grid = make("div", { role: "grid", "aria-label": "Heads: a row for each layer", class: "heads", style: `--heads:${heads};--thumb:${thumbSize(heads)}px` }, columns, ...lines);
  fill(at("grid"), grid, make("p", { class: "hint" }, heads * layers > 1 ? "Rows are layers, columns are heads." : "This model has one head."));

  const choose = (layer, head) => { choice.set({ layer, head }); buttons[choice.layer * heads + choice.head].focus(); };
  onArrows(grid, (right, down) => choose(choice.layer + down, choice.head + right), (first) => choose(choice.layer, first ? 0 : heads - 1));
  choice.listen((changed) => {
    if (!changed.has("layer") && !changed.has("head")) return;
    buttons.forEach((button, i) => {
      const chosen = i === choice.layer * heads + choice.head;
      button.setAttribute("aria-pressed", chosen);
      button.tabIndex = chosen ? 0 : -1;
    });
  });
  // A layer at a time, so that the page answers in between
  const paintFrom = (layer) => {
    for (let head = 0; head < heads; head++) paintThumb(data, buttons[layer * heads + head].firstChild, layer, head, side);
    if (layer + 1 < layers) setTimeout(() => paintFrom(layer + 1));
  };
  setTimeout(() => paintFrom(0));
  onTheme(() => paintFrom(0));
}

function paintThumb(data, canvas, layer, head, side) {
  const T = data.tokens.length;
  const largest = new Int32Array(side * side).fill(-1);
  for (let query = 0; query < T; query++) {
    if (!isKept(data, query)) continue;
    const y = Math.floor((query * side) / T) * side;
    const weights = row(data, layer, head, query);
    const first = firstKey(data, layer, query);
    for (let i = 0; i < weights.length; i++) {
      const cell = y + Math.floor(((first + i) * side) / T);
      if (weights[i] > largest[cell]) largest[cell] = weights[i];
    }
  }
  canvas.getContext("2d").putImageData(colored(largest, side, side), 0, 0);
}

// Ten-thousandths as pixels; -1 is hidden.
export function colored(values, width, height) {
  const image = new ImageData(width, height);
  const pixels = new Int32Array(image.data.buffer);
  const colors = weightPixels(), hidden = hiddenPixel();
  for (let i = 0; i < values.length; i++) pixels[i] = values[i] < 0 ? hidden : colors[values[i]];
  return image;
}
