// The logit lens: over layers and positions as a map, and at the chosen token as a table.
import { inkOn, onTheme, weightColor } from "./colors.js";
import { hasLens, lensAddress, lensRows, readLens, whyMissing } from "./data.js";
import { byId, caption, fill, fitCanvas, heading, hint, make, numberCell, onWidth, region, tableHead } from "./dom.js";
import { four, named, quoted, short, storedProbability, visible } from "./format.js";
import { frame, held, inks, makeHeatMap } from "./heatmap.js";

const ROW = 22, LABELS = 76, BOTTOM = 20; // pixels
const READABLE = 46; // pixels of a cell that shows its token

// What a cell shows: its number, the share on the scale of weights, and the text of the number.
const QUANTITIES = {
  top: { words: "probability of the most probable token", read: ({ top }) => top[0].probability, share: (value) => value, text: storedProbability },
  following: { words: "probability of the next token of the text", read: ({ following }) => following, share: (value) => value, text: storedProbability },
  rank: { words: "rank of the next token of the text", read: ({ rank }) => rank + 1, share: (value) => 1 / value, text: (value) => value.toLocaleString("en") },
  entropy: { words: "entropy in nats", read: ({ entropy }) => entropy, share: (value, data) => value / Math.log(data.shape.vocabulary), text: four },
};

export function showLensMap(data, choice) {
  const reading = make("p", { class: "reading", role: "status", "aria-live": "polite", id: "lens-reading" });
  const select = make("select", { id: "lens-quantity", onchange: () => show() }, ...Object.entries(QUANTITIES).map(([name, { words }]) => make("option", { value: name }, words)));
  const scale = make("p", { class: "scale", "aria-label": "Color scale" });
  const columns = data.tokens.length - data.lensFrom, rows = data.lensPlaces.length;
  const cells = data.lensPlaces.map(() => null); // a list for each row, which stays null until it is read
  let width = 0, under = null;
  const words = "The logit lens: rows are layers, columns are tokens. Arrow keys move over the cells, Enter chooses the token and the layer.";
  const { canvas } = makeHeatMap({ id: "lens-canvas", "aria-label": words }, reading, {
    cellAt: (x, y) => {
      const { left, cell } = layoutOf(data, width), column = Math.floor((x - left) / cell), row = Math.floor(y / ROW);
      return column >= 0 && column < columns && row >= 0 && row < rows ? { row, column } : null;
    },
    start: () => chosenCell(data, choice),
    moved: ({ row, column }, right, down) => ({ row: held(row + down, rows), column: held(column + right, columns) }),
    show: (cell) => {
      under = cell;
      describe();
      paint();
      choice.point(cell ? { token: data.lensFrom + cell.column } : null);
    },
    choose: ({ row, column }) => {
      const { layer } = data.places[data.lensPlaces[row]];
      choice.set({ token: data.lensFrom + column, ...(layer >= 0 ? { layer } : {}) });
    },
  });
  const holder = make("div", {}, canvas);
  fill(byId("lens-map"), make("p", { class: "field wide" }, make("label", { for: "lens-quantity" }, "Color and number:"), select), holder, reading, scale);

  const describe = () => fill(reading, ...readingOf(data, cells, under ?? chosenCell(data, choice)));
  const paint = () => { if (width && cells.some(Boolean)) paintMap(data, choice, canvas, { cells, width, under, quantity: QUANTITIES[select.value] }); };
  const show = () => {
    lensRows(data).forEach((isRead, row) => { if (isRead) cells[row] ??= readRow(data, row); });
    holder.hidden = !cells.some(Boolean);
    fill(scale, ...scaleOf(data, QUANTITIES[select.value]));
    describe();
    paint();
  };
  choice.on(["token", "layer", "data"], show);
  onTheme(show);
  onWidth(byId("lens-map"), (known) => { width = known; paint(); });
}

const readRow = (data, row) => Array.from({ length: data.tokens.length - data.lensFrom }, (_, column) => readLens(data, row, data.lensFrom + column));

const layoutOf = (data, width) => ({ left: LABELS, cell: (width - LABELS) / (data.tokens.length - data.lensFrom) });

// The cell of the chosen token and layer.
function chosenCell(data, { token, layer }) {
  const row = data.lensPlaces.findIndex((index) => data.places[index].layer === layer);
  return { row: Math.max(0, row), column: Math.max(0, token - data.lensFrom) };
}

function readingOf(data, cells, { row, column }) {
  if (!cells[row]) return [whyMissing(data)];
  const { top, following, rank, entropy } = cells[row][column], token = data.lensFrom + column;
  const place = data.places[data.lensPlaces[row]].label;
  const share = (id, probability) => make("span", { "data-address": lensAddress(data, row, "probabilities", token, id) }, storedProbability(probability));
  const next = token < data.last ? [`; ${quoted(data.tokens[token + 1].text)}, the next token: probability `, share(data.tokens[token + 1].id, following), `, rank ${(rank + 1).toLocaleString("en")}`] : [];
  return [`${named(data, token)}, ${place}: top ${quoted(data.vocabulary[top[0].id])} `, share(top[0].id, top[0].probability), ...next,
    "; entropy ", make("span", { "data-address": lensAddress(data, row, "entropy", token) }, four(entropy)), " nats"];
}

// The last token of the text has no next token.
const hasNumber = (data, quantity, column) => data.lensFrom + column < data.last || quantity === QUANTITIES.top || quantity === QUANTITIES.entropy;

function paintMap(data, choice, canvas, { cells, width, under, quantity }) {
  const { left, cell } = layoutOf(data, width), ink = inks();
  const context = fitCanvas(canvas, width, cells.length * ROW + BOTTOM);
  context.font = `12px ${ink("--sans")}`;
  context.textBaseline = "middle";
  cells.forEach((line, row) => line?.forEach((each, column) => {
    const isShown = hasNumber(data, quantity, column), value = quantity.read(each), share = isShown ? quantity.share(value, data) : 0;
    const x = left + column * cell, y = row * ROW;
    context.fillStyle = isShown ? weightColor(share) : ink("--hidden");
    context.fillRect(x, y, Math.max(1, cell - (cell > 6 ? 1 : 0)), ROW - 1);
    if (!isShown || cell < READABLE) return;
    context.fillStyle = inkOn(share);
    context.textAlign = "center";
    const text = quantity === QUANTITIES.top ? short(data.vocabulary[each.top[0].id], Math.floor(cell / 8)) : quantity.text(value);
    context.fillText(text, x + cell / 2, y + ROW / 2, cell - 4);
  }));
  paintLabels(data, choice, context, { left, cell, rows: cells.length, ink });
  const chosen = chosenCell(data, choice);
  frame(context, ink("--accent"), left + chosen.column * cell, chosen.row * ROW, cell - 1, ROW - 1);
  if (under) frame(context, ink("--text"), left + under.column * cell, under.row * ROW, cell - 1, ROW - 1);
}

function paintLabels(data, choice, context, { left, cell, rows, ink }) {
  context.textAlign = "right";
  data.lensPlaces.forEach((index, row) => {
    const { layer } = data.places[index];
    context.fillStyle = ink(layer === choice.layer ? "--text" : "--muted");
    context.fillText(layer < 0 ? "embedding" : `layer ${layer}`, left - 5, (row + 0.5) * ROW);
  });
  const columns = data.tokens.length - data.lensFrom, isWide = cell > READABLE;
  const every = isWide ? 1 : Math.max(1, 2 ** Math.ceil(Math.log2(28 / cell)));
  context.textAlign = "center";
  for (let column = 0; column < columns; column += every) {
    const token = data.lensFrom + column;
    context.fillStyle = ink(token === choice.token ? "--text" : "--muted");
    context.fillText(isWide ? short(data.tokens[token].text, Math.floor(cell / 8)) : String(token), left + (column + 0.5) * cell, rows * ROW + BOTTOM / 2, cell * every);
  }
}

function scaleOf(data, quantity) {
  const most = Math.log(data.shape.vocabulary);
  const values = quantity === QUANTITIES.rank ? [1, 2, 10, 100] : quantity === QUANTITIES.entropy ? [0, 1, 2, 4, most] : [0, 0.01, 0.05, 0.2, 0.5, 1];
  return values.filter((value) => quantity !== QUANTITIES.entropy || value <= most).map((value) => make("span", { class: "swatch" },
    make("i", { style: `background:${weightColor(quantity.share(value, data))}` }), Number.isInteger(value) ? String(value) : String(Number(value.toFixed(2)))));
}

// The logit lens at the chosen token: the top next tokens after each layer.
export function showLens(data, choice) {
  const show = () => fill(byId("lens"), ...(hasLens(data, choice.token) ? [lensTable(data, choice)] : [hint("The lens is kept for the last positions only.")]));
  choice.on(["token", "layer"], show);
  onTheme(show);
}

const TOP_TOKENS = 5; // of a reading

function lensTable(data, choice) {
  const next = data.tokens[choice.token + 1];
  const places = data.lensPlaces.map((index) => data.places[index]);
  const addressAt = (index) => (id) => lensAddress(data, index, "probabilities", choice.token, id);
  const cell = (address) => ({ id, probability }) => make("td", {
    style: `background:${weightColor(probability)};color:${inkOn(probability)}`, title: `${visible(data.vocabulary[id])}: ${storedProbability(probability)}`,
    class: next?.id === id ? "follows" : "",
  }, make("bdi", {}, short(data.vocabulary[id], 10)), make("small", { "data-address": address(id) }, storedProbability(probability)));
  const columns = Math.min(TOP_TOKENS, data.shape.vocabulary);
  const line = (place, index) => {
    const reading = readLens(data, index, choice.token);
    if (!reading) return make("tr", {}, make("th", { scope: "row" }, place.label), make("td", { colspan: columns }, "…"));
    const { top, following } = reading;
    return make("tr", place.layer === choice.layer ? { class: "chosen" } : {},
      make("th", { scope: "row" }, place.label), ...top.map(cell(addressAt(index))),
      ...(next ? [numberCell(storedProbability(following), addressAt(index)(next.id))] : []));
  };
  const ranks = Array.from({ length: columns }, (_, i) => heading(["top", "2nd", "3rd"][i] ?? `${i + 1}th`));
  const words = `The last norm and the head applied to the stream at ${quoted(data.tokens[choice.token].text)} after each layer: the probability of the next token. Shades as in the attention maps.`
    + (next ? ` Underlined: ${quoted(next.text)}, the next token of the text; its probability is in the last column.` : "");
  return region("Logit lens",
    make("table", { class: "lens" }, caption(words),
      tableHead(heading("Point"), ...ranks, ...(next ? [heading("follows", true)] : [])),
      make("tbody", {}, ...places.map(line))));
}
