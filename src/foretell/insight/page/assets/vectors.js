// The chosen token's vectors: its embedding and the stream at every place, each number a cell; hover or arrows read one.
import { at, caption, fill, fitCanvas, make, onWidth } from "page/dom.js";
import { signColor } from "page/colors.js";
import { whyMissing } from "page/data.js";
import { four, named } from "page/format.js";
import { onArrows } from "page/keys.js";
import { onTheme } from "page/theme.js";

const LINE = 16;
const IN_FULL = 16; // numbers of a table's row; longer vectors show their first and last
const ENDS = [6, 3];

export function showVectors(data, choice) {
  const canvas = make("canvas", { tabindex: 0, role: "application", "aria-roledescription": "heat map", "aria-describedby": "vector-reading",
    "aria-label": "The vectors of the chosen token, a row for each place. Arrow keys move over the numbers." });
  const reading = make("p", { class: "reading", role: "status", "aria-live": "polite", id: "vector-reading" });
  const left = make("div", { class: "vector-labels", "aria-hidden": "true" });
  const numbers = make("div");
  let lines = [], width = 0, cursor = null;

  const tell = (cell) => {
    reading.classList.toggle("hint", !cell);
    reading.textContent = cell ? `${lines[cell.line].label}, dimension ${cell.dimension}: ${four(lines[cell.line].values[cell.dimension])}` : "Point at a number to read it. Blue is above zero, orange below; each row is scaled to its largest.";
  };
  const cellAt = (event) => {
    const box = canvas.getBoundingClientRect();
    const line = Math.floor((event.clientY - box.top) / LINE), dimension = Math.floor(((event.clientX - box.left) / box.width) * data.shape.width);
    return lines[line] && dimension >= 0 && dimension < data.shape.width ? { line, dimension } : null;
  };
  canvas.addEventListener("pointermove", (event) => tell(cellAt(event)));
  canvas.addEventListener("pointerdown", (event) => tell(cellAt(event)));
  canvas.addEventListener("pointerleave", () => tell(null));
  const move = (right, down) => {
    cursor = cursor ?? { line: 0, dimension: 0 };
    cursor = { line: hold(cursor.line + down, lines.length), dimension: hold(cursor.dimension + right, data.shape.width) };
    paint();
    tell(cursor);
  };
  onArrows(canvas, move, (first) => move(first ? -data.shape.width : data.shape.width, 0));
  canvas.addEventListener("blur", () => { cursor = null; paint(); tell(null); });

  const paint = () => width && lines.length && paintLines(canvas, lines, width, cursor);
  const show = () => {
    lines = vectorsOf(data, choice.token);
    at("vectors-title").textContent = `The vectors of ${named(data, choice.token)}`;
    strip.hidden = !lines.length;
    if (!lines.length) return fill(reading, whyMissing(data));
    fill(left, ...lines.map((line) => make("span", {}, line.label)));
    fill(numbers, table(lines));
    paint();
    tell(null);
  };
  const place = make("div", { class: "strip-place" }, canvas);
  const strip = make("div", { class: "strip" }, left, place);
  fill(at("vectors"), strip, reading, numbers);
  choice.listen((changed) => changed.has("token") && show());
  onTheme(() => paint());
  onWidth(place, (known) => { width = known; paint(); });
}

const hold = (value, size) => Math.min(size - 1, Math.max(0, value));

// {label, values} of everything that the page holds for a token.
function vectorsOf(data, token) {
  const held = [["embed.words", "word"], ["embed.positions", "position"], ["embed.sum", data.get("embed.positions") ? "word + position" : "embedding"]];
  data.places.forEach((place, i) => i && held.push([`stream.${i}`, place.label]));
  if (!data.get(`stream.${data.places.length - 1}`)) held.push(["final", data.places[data.places.length - 1].label]);
  return held.filter(([name]) => data.get(name)).map(([name, label]) => ({ label, values: data.get(name).vector(token) }));
}

// One pixel a number, then stretched.
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

function table(lines) {
  const D = lines[0].values.length;
  const whole = D <= IN_FULL;
  const shown = whole ? lines[0].values.map((_, i) => i) : [...Array(ENDS[0]).keys(), null, ...Array.from({ length: ENDS[1] }, (_, i) => D - ENDS[1] + i)];
  const line = ({ label, values }) => make("tr", {}, make("th", { scope: "row" }, label), ...shown.map((i) => make("td", { class: "number" }, i === null ? "…" : four(values[i]))));
  return make("details", { open: whole || undefined }, make("summary", {}, "As a table"),
    make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Vectors as a table" },
      make("table", {}, caption(whole ? "Every number." : `The first ${ENDS[0]} and the last ${ENDS[1]} of ${D} numbers.`),
        make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Vector"), ...shown.map((i) => make("th", { scope: "col", class: "number" }, i === null ? "…" : String(i))))),
        make("tbody", {}, ...lines.map(line)))));
}
