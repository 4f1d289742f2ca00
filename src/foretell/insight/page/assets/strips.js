// Vectors as rows of cells, one cell per number: hovering or arrow keys read a number, a click or Enter keeps it.
import { onTheme, signColor } from "./colors.js";
import { caption, fill, fitCanvas, headings, make, numberCell, onWidth, region, tableHead } from "./dom.js";
import { four } from "./format.js";
import { frame, held, inks, makeHeatMap } from "./heatmap.js";

const LINE = 16; // pixels of a row of cells; on a narrow page, its label is above it
const TABLE_NUMBERS = 16; // per row of the table; longer vectors show their first and last
const TABLE_ENDS = [6, 3];
const HINT = "Point at a number to read it; click to keep it. Blue is above zero, orange below; each row is scaled to its largest number.";

// lines: [{label, values, address, unit}]; address(i) is the address of a number, unit the word for its index.
export function makeStrips(id, words) {
  const reading = make("p", { class: "reading", role: "status", "aria-live": "polite", id: `${id}-reading` });
  const left = make("div", { class: "vector-labels", "aria-hidden": "true" });
  let lines = [], width = 0, kept = null;
  const step = () => (matchMedia("(max-width: 600px)").matches ? 2 * LINE : LINE);

  const describe = (cell) => {
    reading.classList.toggle("hint", !cell);
    if (!cell) return fill(reading, HINT);
    const { label, values, address, unit } = lines[cell.line];
    fill(reading, `${label}, ${unit ?? "dimension"} ${cell.index}: ${four(values[cell.index])} `, make("code", { "data-address": address(cell.index) }, address(cell.index)));
  };
  const { canvas, cursor } = makeHeatMap({ "aria-label": `${words}. Arrow keys move over the numbers, Enter keeps one.` }, reading, {
    cellAt: (x, y, box) => {
      const line = Math.floor(y / step()), size = lines[line]?.values.length ?? 0, index = Math.floor((x / box.width) * size);
      return index >= 0 && index < size ? { line, index } : null;
    },
    start: () => kept ?? { line: 0, index: 0 },
    moved: (from, right, down) => {
      const line = held(from.line + down, lines.length);
      return { line, index: held(from.index + right, lines[line].values.length) };
    },
    show: (cell, isByKey) => {
      if (isByKey || !cell) paint();
      describe(cell ?? kept);
    },
    choose: (cell) => {
      kept = cell;
      paint();
      describe(cell);
    },
  });
  const tables = make("div"), holder = make("div", {}, canvas), strip = make("div", { class: "strip" }, left, holder);

  const paint = () => {
    strip.classList.toggle("stacked", step() > LINE);
    if (width && lines.length) paintLines(canvas, lines, width, step(), cursor() ?? kept);
  };
  const show = (shown, missing) => {
    if (shown.length !== lines.length) kept = null;
    lines = shown;
    strip.hidden = !lines.length;
    if (kept && kept.index >= lines[kept.line]?.values.length) kept = null;
    fill(left, ...lines.map((line) => make("span", { title: line.label }, line.label)));
    fill(tables, ...sameLength(lines).map((group) => vectorTable(words, group)));
    paint();
    if (lines.length) describe(kept);
    else fill(reading, missing ?? "");
  };
  onTheme(paint);
  onWidth(holder, (known) => { width = known; paint(); });
  return { element: make("div", { class: "strips" }, strip, reading, tables), show };
}

// One pixel per number, then stretched to the width.
function paintLines(canvas, lines, width, step, cursor) {
  const context = fitCanvas(canvas, width, lines.length * step), topOf = (line) => (line + 1) * step - LINE;
  lines.forEach(({ values }, y) => {
    const size = values.length, largest = Math.max(...values.map(Math.abs)) || 1;
    const image = new ImageData(size, 1);
    values.forEach((value, x) => {
      image.data.set(signColor(value / largest), 4 * x);
      image.data[4 * x + 3] = 255;
    });
    const small = make("canvas", { width: size, height: 1 });
    small.getContext("2d").putImageData(image, 0, 0);
    context.imageSmoothingEnabled = size > width;
    context.drawImage(small, 0, 0, size, 1, 0, topOf(y), width, LINE - 1);
  });
  if (!cursor) return;
  const cell = width / lines[cursor.line].values.length;
  frame(context, inks()("--text"), cursor.index * cell, topOf(cursor.line), Math.max(4, cell), LINE - 1);
}

function sameLength(lines) {
  const groups = new Map();
  for (const line of lines) groups.set(line.values.length, [...(groups.get(line.values.length) ?? []), line]);
  return [...groups.values()];
}

function vectorTable(words, lines) {
  const size = lines[0].values.length, whole = size <= TABLE_NUMBERS;
  const shown = whole ? lines[0].values.map((_, i) => i) : [...Array(TABLE_ENDS[0]).keys(), null, ...Array.from({ length: TABLE_ENDS[1] }, (_, i) => size - TABLE_ENDS[1] + i)];
  const cell = ({ values, address }, i) => (i === null ? numberCell("…") : numberCell(four(values[i]), address(i)));
  const line = (each) => make("tr", {}, make("th", { scope: "row" }, each.label), ...shown.map((i) => cell(each, i)));
  return make("details", { open: whole || undefined }, make("summary", {}, `As a table: ${size.toLocaleString("en")} numbers each`),
    region(`${words} as a table`,
      make("table", {}, caption(whole ? "All numbers of each vector." : `The first ${TABLE_ENDS[0]} and the last ${TABLE_ENDS[1]} of ${size.toLocaleString("en")} numbers.`),
        tableHead(...headings(["Vector", ...shown.map((i) => (i === null ? "…" : String(i)))])),
        make("tbody", {}, ...lines.map(line)))));
}
