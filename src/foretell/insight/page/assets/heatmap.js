// Heat maps: canvases whose cells the pointer or the arrow keys read, and a click or Enter chooses.
import { make, onArrows } from "./dom.js";

// A map whose words are in `reading`. It returns the canvas, and the cell of the keys or null.
// cellAt(x, y, box): the cell at a point of the canvas, or null. start(): the cell where the keys begin, and
// moved(cell, right, down): another one. show(cell, isByKey): reads a cell; null when the map is left. choose(cell).
export function makeHeatMap(attributes, reading, { cellAt, start, moved, show, choose }) {
  const canvas = make("canvas", { tabindex: 0, role: "application", "aria-roledescription": "heat map", "aria-describedby": reading.id, ...attributes });
  let cursor = null;
  const under = (event) => {
    const box = canvas.getBoundingClientRect();
    return cellAt(event.clientX - box.left, event.clientY - box.top, box);
  };
  const move = (right, down) => {
    cursor = moved(cursor ?? start(), right, down);
    show(cursor, true);
  };
  const leave = () => {
    cursor = null;
    show(null);
  };
  for (const type of ["pointermove", "pointerdown"]) canvas.addEventListener(type, (event) => show(under(event)));
  canvas.addEventListener("pointerleave", () => show(null));
  canvas.addEventListener("click", (event) => {
    const cell = under(event);
    if (cell) choose(cell);
  });
  onArrows(canvas, move, (isFirst) => move(isFirst ? -Infinity : Infinity, 0));
  canvas.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      if (cursor) choose(cursor);
    }
    if (event.key === "Escape") leave();
  });
  // A reading whose number takes the focus stays
  canvas.addEventListener("blur", ({ relatedTarget }) => reading.contains(relatedTarget) || leave());
  return { canvas, cursor: () => cursor };
}

export const held = (value, size) => Math.min(size - 1, Math.max(0, value));

export function frame(context, color, x, y, width, height, line = 2) {
  context.strokeStyle = color;
  context.lineWidth = line;
  context.strokeRect(x, y, Math.max(3, width), Math.max(3, height));
}

// A function that reads colors and fonts of the page's style by their names.
export function inks() {
  const style = getComputedStyle(document.documentElement);
  return (name) => style.getPropertyValue(name);
}
