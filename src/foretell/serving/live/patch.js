// Patching from a second text: the effect on a token's log-probability of replacing the stream after each layer, at one
// position at a time, by the second text's. The rows of the map arrive one by one. A click adds a patch as a change.
import { css, inkOnSign, onTheme, signColor } from "../colors.js";
import { button, byId, caption, fill, heading, headings, hint, make, numberCell, onArrows, region, tableHead } from "../dom.js";
import { addressOf, four, named, opens, opensDifference, quoted, short } from "../format.js";
import { shown } from "../main.js";
import { addFoldedPanel, signed } from "./panels.js";
import { ask } from "./server.js";
import { addChange, busy, fetchSections, passFields, session, setStale } from "./session.js";

const MOST_POSITIONS = 16; // of a map, unless the reader asks for more

let running = new AbortController();
const map = { key: "", problem: "", rows: [], positions: [], other: [], second: "" }; // of the last text

const keyOf = ({ model, text, others, answer, appended }) => JSON.stringify([model, text, others, answer, appended]);

export function makePatchMap() {
  const second = make("textarea", { id: "second", rows: 2, spellcheck: "false", dir: "auto", onchange: () => { session.note({ second: second.value }); draw(); } });
  const number = (id, label) => [make("label", { for: id }, label), make("input", { type: "number", id, min: 0, step: 1 })];
  const panel = addFoldedPanel("patch", "Patch from a second text",
    hint("Each cell replaces the stream after a layer, at one position, by the stream of the second text there, and shows how the log-probability of the token changes. Click a cell to add its patch as a change."),
    make("label", { for: "second" }, "Second text"), second,
    make("div", { class: "editor-row" }, ...number("patch-from", "Positions from"), ...number("patch-to", "to"),
      button("Compute the map", compute, { id: "patch-start" }), button("Cancel", cancel, { id: "patch-cancel", hidden: true })),
    make("div", { id: "patch-map" }));
  session.listen((state) => {
    if (document.activeElement !== second) second.value = state.second;
    if (state.second) panel.open = true;
    if (map.key && map.key !== keyOf(state)) { cancel(); map.key = ""; }
    if (!map.key) { map.problem = ""; draw(); }
  });
}

// The part of the page that is shown again with every pass.
export function showPatchMap(data) {
  const [first, last] = positionsOf(data, data.last);
  byId("patch-from").placeholder = first;
  byId("patch-to").placeholder = last;
  draw();
  onTheme(draw);
}

// The first and the last position of the map: as given, or the last ones that both texts have.
function positionsOf(data, lastOfSecond) {
  const given = (id) => byId(id).valueAsNumber; // NaN: not given
  const last = Math.min(given("patch-to") >= 0 ? given("patch-to") : data.last, data.last, lastOfSecond);
  return [given("patch-from") >= 0 ? given("patch-from") : Math.max(0, last + 1 - MOST_POSITIONS), last];
}

function cancel() {
  running.abort();
  byId("patch-cancel").hidden = true;
}

async function compute() {
  const { data } = shown, second = byId("second").value;
  if (!data) return;
  cancel();
  map.problem = "";
  const fail = (problem) => { Object.assign(map, { key: "", problem }); draw(); };
  if (!second) return fail("Enter a second text.");
  const { signal } = running = new AbortController();
  byId("patch-cancel").hidden = false;
  await busy(signal, async () => {
    const pass = await fetchSections([], { text: second, appended: [], change: [] }, { signal, fail, label: "Second text" });
    if (!pass) return;
    const other = pass.tokens.map(({ text }) => text);
    const [from, to] = positionsOf(data, other.length - 1);
    const positions = Array.from({ length: Math.max(0, to - from + 1) }, (_, i) => from + i);
    if (!positions.length) throw new Error(from > to && to < Math.min(data.last, other.length - 1) ? "The first position is after the last." : "The second text has none of these positions; choose others, or a longer text.");
    const fields = passFields(); // a change that is made meanwhile is not in the map
    Object.assign(map, { key: keyOf(session.state), rows: [], positions, other, second, data, change: fields.change });
    draw();
    for (let layer = -1; layer < data.shape.layers; layer++) {
      const row = await ask("explore/patch", { ...fields, second, layer, positions, token: map.rows[0]?.token.id }, signal);
      map.rows.push(row);
      draw();
    }
  }, () => {}, fail);
  if (running.signal === signal) cancel();
}

function draw() {
  const { rows, positions, other, data, second, problem } = map;
  setStale("patch", map.key && byId("second").value !== map.second);
  if (!map.key) return fill(byId("patch-map"), ...(problem ? [make("p", { class: "summary", role: "status" }, problem)] : []));
  const largest = Math.max(1e-9, ...rows.flatMap((row) => row.positions.map((cell) => Math.abs(cell.logprob_difference))));
  const cells = [];
  const cell = (row, { position, logprob, logprob_difference: change }) => {
    const label = `${placeOf(row)}, position ${position}: ${four(row.logprob)} → ${four(logprob)}, ${signed(four, change)}`;
    const own = button(change.toFixed(1).replace("-0.0", "0.0").replace("-", "−"), () => addChange({ value: row.name, patch: second, positions: [position] }), {
      class: "cell", tabindex: cells.length ? -1 : 0, title: label, "aria-label": label, style: `background:${css(signColor(change / largest))};color:${inkOnSign(change / largest)}`,
    });
    cells.push(own);
    return make("td", {}, own);
  };
  const head = positions.map((position) => heading(make("span", { title: `${named(data, position)}; second text: ${quoted(other[position])}` },
    make("bdi", {}, short(data.tokens[position].text, 8)), ...(other[position] === data.tokens[position].text ? [] : [make("small", {}, short(other[position], 8))]))));
  const total = data.shape.layers + 1;
  const table = make("table", { class: "patches", "aria-label": "Effects of patches" },
    tableHead(heading("after"), ...head),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, make("th", { scope: "row" }, row.layer < 0 ? "embedding" : `layer ${row.layer}`), ...row.positions.map((each) => cell(row, each))))));
  const moveTo = (index) => { cells.forEach((each, i) => { each.tabIndex = i === index ? 0 : -1; }); cells[index]?.focus(); };
  const now = () => cells.indexOf(document.activeElement), width = positions.length;
  onArrows(table, (right, down) => moveTo(Math.min(cells.length - 1, Math.max(0, now() + right + down * width))), (isFirst) => moveTo(isFirst ? 0 : cells.length - 1));
  const before = rows.length && opens({ address: logprobOf(rows[0]), ...unpatched() });
  const words = rows.length ? [`Change of the log-probability of ${quoted(rows[0].token.text)}, `, make("span", before, four(rows[0].logprob)), ` in the pass${rows.length < total ? `; ${rows.length} of ${total} rows` : ""}. Blue: higher, orange: lower. Under a token: the second text’s, where it differs.`] : ["Computing the first row …"];
  fill(byId("patch-map"), make("p", { class: "summary", role: "status" }, ...words), region("Map of patches", table),
    ...(rows.length ? [patchTable()] : []));
}

// The numbers of a map open in the pass that it was computed for, unpatched or with one more change.
const logprobOf = ({ token }) => addressOf("logprobs", map.data.last, token.id);
const unpatched = () => ({ words: "without the patch", change: map.change });
const patched = (row, { position }) => ({ words: "with the patch", change: [...map.change, { value: row.name, patch: map.second, positions: [position] }] });

// Every patch with the log-probability after it.
function patchTable() {
  const { rows, data, isOpen } = map;
  const line = (row) => (cell) => {
    const address = logprobOf(row), after = { address, ...patched(row, cell) };
    return make("tr", {}, make("th", { scope: "row" }, placeOf(row)), make("td", {}, named(data, cell.position)), numberCell(four(cell.logprob), opens(after)),
      numberCell(signed(four, cell.logprob_difference), opensDifference(after, { address, ...unpatched() })));
  };
  const head = tableHead(...headings(["Patch", "Position", "Log-probability", "Change"], 2)), holder = region("Patches as a table", [], "tall limited");
  const show = () => map.isOpen && !holder.firstChild && fill(holder, make("table", {}, caption(`The log-probability of ${quoted(rows[0].token.text)} after each patch, and its change`), head, make("tbody", {}, ...rows.flatMap((row) => row.positions.map(line(row))))));
  show(); // a closed table is not made: the map is drawn again with each row
  return make("details", { open: isOpen, ontoggle: ({ target }) => { map.isOpen = target.open; show(); } }, make("summary", {}, "As a table"), holder);
}

const placeOf = ({ layer }) => (layer < 0 ? "embedding" : `after layer ${layer}`);
