// The panel of one number: its operands, each of which opens in turn, down to weights, with the path back.
import { button, byId, caption, factList, fill, heading, hint, make, onArrows, region, setOpener, tableHead } from "../dom.js";
import { inOneScale, opens, visible } from "../format.js";
import { shown } from "../main.js";
import { ask } from "./server.js";
import { busy, passFields, session } from "./session.js";

const FIRST = 12; // rows of a listing, before all are asked for
const ADDRESS = /(?:grad:)?[\w.]+\[-?\d+(?:,-?\d+)*\]/g; // of one number
const LEARNED = /^(logits|head|embed|trunk)\b/; // numbers that the loss may depend on

let path = []; // numbers, from the first that was opened to the shown one: {address, pass, minus, times, sum}
let running = new AbortController();
let origin = { element: null, stop: "" }; // the element outside the panel that had the focus, and its number
let lastStop = ""; // the last number in a table that had the focus

export function makeValuePanel() {
  const address = make("input", { id: "address", type: "text", spellcheck: "false", placeholder: "head[3,97]", "aria-label": "Address of a number" });
  const form = make("form", { class: "editor-row", onsubmit: (event) => { event.preventDefault(); if (address.value) open({ address: address.value }); } }, address, make("button", { type: "submit", class: "plain" }, "Open"));
  const panel = make("aside", { id: "value", class: "card", "aria-labelledby": "value-title", hidden: true },
    make("div", { class: "value-head" }, make("h2", { id: "value-title", tabindex: -1 }, "One number"), button("✕", close, { class: "remove", "aria-label": "Close" })),
    form, make("nav", { id: "value-path", "aria-label": "Path of numbers" }), make("div", { id: "value-body" }));
  document.body.append(panel);
  panel.addEventListener("keydown", (event) => event.key === "Escape" && close());
  document.addEventListener("click", (event) => {
    const element = event.target.closest?.("[data-address]");
    if (!element) return;
    const number = numberOf(element), { pass } = panel.contains(element) ? path.at(-1) : {};
    if (panel.contains(element)) follow({ ...number, pass: number.pass ?? pass }); // of the same pass
    else open(number);
  });
  session.listen(() => path.length && show());
  setOpener(opener, makeOneStop);
}

// The content of a number with an address: a button, which the keyboard reaches.
const opener = (address, children) => make("button", { type: "button", class: "opens", title: `Show the operands of ${address}` }, ...children);

const parsed = (text) => text && JSON.parse(text);
const numberOf = ({ dataset: { address, pass, minus, times, sum } }) => ({ address, pass: parsed(pass), minus: parsed(minus), times: parsed(times), sum: parsed(sum) });
const stopOf = (element) => JSON.stringify(numberOf(element.closest("[data-address]")));

// The numbers of a table, or of a card of formulas, are one stop of the Tab key, and arrow keys move between them.
function makeOneStop(table) {
  const rows = [...(table.rows ?? table.children)].map((row) => [...row.querySelectorAll(".opens")]).filter((row) => row.length), all = rows.flat();
  if (all.length < 2) return;
  const stopAt = (stop) => all.forEach((each) => { each.tabIndex = each === stop ? 0 : -1; });
  const held = (index, list) => list[Math.min(list.length - 1, Math.max(0, index))];
  const goTo = (find) => {
    const now = document.activeElement, row = rows.findIndex((each) => each.includes(now));
    if (row < 0) return false;
    find(row, rows[row].indexOf(now)).focus();
  };
  stopAt(all.find((each) => stopOf(each) === lastStop) ?? all[0]); // a table that is drawn again keeps its stop
  table.addEventListener("focusin", ({ target }) => {
    if (!all.includes(target)) return;
    lastStop = stopOf(target);
    stopAt(target);
  });
  onArrows(table, (right, down) => goTo((row, column) => held(column + right, held(row + down, rows))), (isFirst) => goTo((row) => rows[row].at(isFirst ? 0 : -1)));
}

function open(number) {
  const element = document.activeElement;
  const isTyped = byId("value").contains(element); // an address: the focus returns to where it was before
  if (!isTyped) origin = { element, stop: element.matches(".opens") ? stopOf(element) : "" };
  if (!isTyped) byId("value").classList.toggle("left", element.getBoundingClientRect().left > innerWidth / 2); // next to the number
  path = [number];
  show(true);
}

function follow(number) {
  path = [...path, number];
  show(true);
}

function backTo(index) {
  path = path.slice(0, index + 1);
  show(true);
}

function close() {
  running.abort();
  path = [];
  byId("value").hidden = true;
  // Where its table was drawn again meanwhile, the same number is another element
  const again = () => [...document.querySelectorAll(".opens")].find((each) => stopOf(each) === origin.stop);
  (origin.element?.isConnected ? origin.element : again())?.focus();
}

async function show(isFocused = false) {
  running.abort();
  const { signal } = running = new AbortController();
  const number = path.at(-1);
  byId("value").hidden = false;
  byId("address").value = number.address;
  showPath();
  if (isFocused) byId("value-title").focus();
  let found = null, problem = "";
  await busy(signal, async () => { found = await read(number, signal); }, () => {}, (reason) => { problem = reason; });
  if (signal.aborted) return;
  fill(byId("value-body"), ...(found ? body(found) : [make("p", { class: "summary" }, `${nameOf(number)} cannot be shown: ${problem}`)]));
}

const nameOf = ({ address, minus, times, sum }) => (sum ? `sum of ${sum.column}` : times ? `${address} · ${nameOf(times)}` : minus ? `${address} − ${minus.address === address ? `the same, ${minus.words}` : minus.address}` : address);

// The explanation of a number, of the difference or the product of two, or of a sum in an explanation.
async function read({ address, pass = {}, minus, times, sum }, signal) {
  const explained = ({ address, words, headWidth, ...fields }) => ask("explore/value", { ...passFields(), ...fields, address }, signal).then((found) => ({ ...found, words, headWidth }));
  if (!minus && !times) return explained({ address, ...pass }).then((found) => (sum ? sumIn(found, sum) : found));
  const numbers = [{ address, ...pass }, minus ?? { ...times, ...pass }], [a, b] = await Promise.all([explained(numbers[0]), minus ? explained(minus) : read({ ...times, pass }, signal)]);
  const combined = (name) => (minus ? a[name] - b[name] : a[name] * b[name]), [stored, recomputed] = [combined("stored"), combined("recomputed")];
  const shared = inOneScale([a.stored, b.stored], [stored]), write = minus ? shared : number, sign = minus ? "−" : "·";
  return {
    ...(times && { words: a.words, headWidth: a.headWidth }), meaning: [...(times ? ["a product"] : []), ...a.meaning], dtype: a.dtype, stored, recomputed, difference: stored - recomputed, agrees: a.agrees && b.agrees,
    steps: [{ formula: [`a ${sign} b = ${write(a.stored)} ${sign} ${b.stored < 0 ? `(${write(b.stored)})` : write(b.stored)} = ${write(stored)}`], operands: { a: numbers[0], b: numbers[1] } }],
  };
}

// The sum of a column of a listing: the addends, and the columns before them that open or are multiplied.
function sumIn({ words, headWidth, meaning, steps }, { step, column }) {
  const { columns, operands, sums: { [column]: stored }, ...rest } = steps[step], [first] = Object.keys(columns), addends = columns[column];
  const before = Object.keys(columns).indexOf(column);
  const shownColumns = Object.entries(columns).filter(([name, [entry]], i) => [first, column].includes(name) || (i < before && (operands[name] || name.includes(" · ") || typeof entry === "string")));
  const recomputed = rest.left_out ? null : addends.reduce((total, each) => total + each, 0), difference = stored - recomputed;
  return {
    words, headWidth, meaning: [`the sum of ${column}`, ...meaning], dtype: "float64", stored, recomputed, difference, write: inOneScale(addends, [stored]),
    agrees: rest.left_out > 0 || Math.abs(difference) <= 1e-12 * addends.reduce((total, each) => total + Math.abs(each), 0),
    steps: [{ ...rest, columns: Object.fromEntries(shownColumns), operands, sums: {} }],
  };
}

function showPath() {
  const links = path.map((number, i) => make("li", {}, i === path.length - 1 ? make("code", { "aria-current": "true" }, nameOf(number)) : button(nameOf(number), () => backTo(i), { class: "link" })));
  const { address, pass, minus, times, sum } = path.at(-1), hasGradient = LEARNED.test(address) && !(pass || minus || times || sum);
  fill(byId("value-path"), make("ol", {}, ...links), make("div", { class: "editor-row" }, ...(path.length > 1 ? [button("‹ Back", () => backTo(path.length - 2))] : []),
    ...(hasGradient ? [button("Learn: its gradient", () => follow({ address: `grad:${address}` }))] : [])));
}

function body({ words, headWidth, meaning, stored, recomputed, difference, dtype, agrees, changed, steps, write }) {
  const inDigits = (value) => number(value, write ?? inOneScale([stored, recomputed], [difference]));
  const compared = [["Recomputed", inDigits(recomputed)], ["Difference", typeof difference === "number" && difference !== 0 ? difference.toExponential(1).replaceAll("-", "−") : String(difference)]];
  const isDerived = steps.some(({ remark }) => remark === undefined); // not a weight
  const facts = [["Value", inDigits(stored)], ...(recomputed === null || !isDerived ? [] : compared)]; // the rows of a sum may be cut
  const verdict = changed ? "A change replaced this number; its operands give what it was before."
    : agrees ? `The value follows from its operands; the difference is rounding in ${dtype}.` : "The value does not follow from its operands.";
  return [
    hint([...(words ? [words] : []), ...meaning].join(", ")),
    factList(facts),
    ...(isDerived || changed ? [make("p", { class: "summary" }, verdict)] : []),
    ...steps.flatMap((each, i) => step(each, i, headWidth)),
  ];
}

function step({ remark, listing, columns, operands, sums, row, left_out: leftOut, formula, note }, index, headWidth) {
  if (remark !== undefined) return [make("p", {}, ...linked(remark))];
  if (columns) return [table({ listing, columns, operands, sums, row, leftOut: leftOut ?? 0, index, headWidth })];
  const source = (operand) => {
    if (!operand.address) return linked(operand);
    const { times, ...first } = operand;
    return [make("button", { type: "button", class: "opens", ...opens(first), ...timesOf(times) }, nameOf({ ...first, times })), operand.words ? `, ${operand.words}` : ""];
  };
  const sources = Object.entries(operands).map(([name, operand]) => make("li", {}, `${name} = `, ...source(operand)));
  return [
    ...(note ? [hint(...linked(note))] : []),
    make("pre", { class: "formula", tabindex: 0, role: "region", "aria-label": "Formula" }, formula.join("\n")),
    ...(sources.length ? [make("ul", { class: "sources" }, ...sources)] : []),
  ];
}

// A text, in which each address of a number is a button.
function linked(text) {
  const parts = [];
  let end = 0;
  for (const match of text.matchAll(ADDRESS)) {
    const isShown = match[0] === path.at(-1).address;
    parts.push(text.slice(end, match.index), isShown ? match[0] : make("button", { type: "button", class: "opens", "data-address": match[0] }, match[0]));
    end = match.index + match[0].length;
  }
  return [...parts, text.slice(end)];
}

function table({ listing, columns, operands, sums, row, leftOut, index, headWidth }) {
  const names = Object.keys(columns), indices = columns[names[0]], length = indices.length;
  const scales = Object.fromEntries(names.map((name) => [name, inOneScale(columns[name].filter((entry) => typeof entry === "number"), name in sums ? [sums[name]] : [])]));
  const numberAt = (name, i) => {
    if (operands[name]) return { address: addressOf(operands[name], indices[i], headWidth) };
    const [first, times] = factorsOf(name, names).map((each) => each && numberAt(each, i));
    return first && !first.times && times ? { ...first, times } : {};
  };
  const cell = (name, i) => {
    if (typeof columns[name][i] !== "number") return make("td", {}, columns[name][i] === "-inf" ? "−∞" : columns[name][i]);
    const { address, times } = numberAt(name, i);
    return make("td", { class: "number", "data-address": address, ...timesOf(times) }, name === names[0] ? String(columns[name][i]) : scales[name](columns[name][i]));
  };
  const holder = make("tbody");
  const fillRows = (count) => {
    const rows = [...indices.keys()], shownRows = new Set([...rows.slice(0, count), ...(row === null ? [] : [row]), length - 1]);
    const lines = rows.filter((i) => shownRows.has(i)).map((i) => make("tr", { class: i === row ? "chosen" : "" }, ...names.map((name) => cell(name, i))));
    const hidden = rows.filter((i) => !shownRows.has(i)), added = (name, some) => some.reduce((total, i) => total + columns[name][i], 0);
    const rest = (name) => make("td", { class: "number" }, number(added(name, hidden) + (leftOut && sums[name] - added(name, rows)), scales[name]));
    const numHidden = hidden.length + leftOut;
    if (numHidden) lines.splice(-1, 0, make("tr", {}, make("th", { scope: "row" }, `… ${numHidden.toLocaleString("en")} more`), ...names.slice(1).map((name) => (name in sums ? rest(name) : make("td")))));
    const sum = (name) => make("td", { class: "number", "data-address": path.at(-1).address, "data-sum": JSON.stringify({ step: index, column: name }) }, number(sums[name], scales[name]));
    const total = Object.keys(sums).length ? [make("tr", { class: "sum" }, make("th", { scope: "row" }, "sum"), ...names.slice(1).map((name) => (name in sums ? sum(name) : make("td"))))] : [];
    fill(holder, ...lines, ...total);
  };
  fillRows(length > FIRST + 2 ? FIRST : length);
  const more = length > FIRST + 2 ? [button(`Show all ${length.toLocaleString("en")} rows`, (event) => { fillRows(length); event.target.remove(); })] : [];
  const head = tableHead(...names.map((name) => heading(name, columns[name].some((entry) => typeof entry === "number"))));
  return region("Operands", [make("table", {}, ...(listing ? [caption(listing)] : []), head, holder), ...more]);
}

// The columns that a column multiplies, by its name: “w · x”, “x = g · u” or “x²”.
function factorsOf(name, names) {
  const factors = name.endsWith("²") ? Array(2).fill(name.slice(0, -1)) : name.split(" = ").at(-1).split(" · ");
  return factors.length === 2 ? factors.map((factor) => names.find((each) => each === factor || each.startsWith(`${factor} = `))) : [];
}

const timesOf = (times) => (times ? { "data-times": JSON.stringify(times) } : {});

// The address of an operand, from the pattern of its column and the index of its row. “[:,3,:]” is a row of all heads.
export function addressOf(pattern, index, width = shown.data.shape.headWidth) {
  const [, gradient, address] = /^(grad:)?([^ ]*)/.exec(pattern.split(", all heads")[0]);
  const entries = address.split(":").length === 3 ? [Math.floor(index / width), index % width] : [index];
  return (gradient ?? "") + address.replace(/(\d*):\d*/g, (_, first) => String(Number(first) + entries.shift()));
}

const number = (value, write = inOneScale([value])) => (typeof value === "number" ? write(value) : visible(value));
