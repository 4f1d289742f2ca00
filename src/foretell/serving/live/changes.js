// Changes of the pass: parts that are switched off or scaled, vectors that are added, values from another text; and the
// prediction and the loss of the changed pass next to the original.
import { argMax, blockOf, coreOf } from "../data.js";
import { button, byId, caption, fill, headings, hint, make, numberCell, tableHead } from "../dom.js";
import { addressOf, four, named, opens, opensDifference, probability as inDigits, quoted, visible } from "../format.js";
import { shown } from "../main.js";
import { isNumber, predictionOf } from "../outcomes.js";
import { addPanel, select, signed } from "./panels.js";
import { addChange, fetchSections, session, setStale } from "./session.js";

const VECTOR = "Add a vector to the stream";
const SHOWN = 5; // tokens
const MOST_DIGITS = 6; // significant ones of an added vector, which is a part of the link

const replaceAt = (index, change) => session.update({ change: session.state.change.map((each, i) => (i === index ? change : each)) });
const removeAt = (index) => session.update({ change: session.state.change.filter((_, i) => i !== index) });

export function makeChanges() {
  const chips = make("ul", { class: "chips", "aria-label": "Changes" });
  const neuron = make("input", { type: "number", id: "change-neuron", min: 0, step: 1, value: 0, required: true });
  const off = (id, change, isValid = () => true) => button("", () => { const { data, choice } = shown; if (data && isValid()) addChange({ ...change(blockOf(data, choice.layer)), scale: 0 }); }, { id });
  addPanel("changes", "Change the pass",
    hint("Switch a part off, then scale it with its slider. Layer and head are the ones chosen in the page."),
    make("div", { class: "editor-row" },
      off("head-off", () => ({ value: coreOf(shown.data, shown.choice.layer), heads: [shown.choice.head] })),
      off("attention-off", (block) => ({ value: `${block}.attention` })),
      off("feedforward-off", (block) => ({ value: `${block}.feedforward` })),
      make("span", { id: "neuron-change", class: "editor-row" }, make("label", { for: "change-neuron" }, "Neuron"), neuron,
        off("neuron-off", (block) => ({ value: `${block}.feedforward.activation`, neurons: [neuron.valueAsNumber] }), () => neuron.reportValidity()))),
    make("details", { id: "change-vector" }, make("summary", {}, VECTOR)), chips,
    make("div", { id: "change-effect", role: "region", "aria-live": "polite", "aria-label": "Effect of the changes" }));
  session.listen((state) => fill(chips, ...state.change.map(chip)));
  byId("grid").after(make("div", { id: "head-change", class: "panel" }));
}

// The part of the page that is shown again with every pass.
export function showChanges(data, choice) {
  const vector = byId("change-vector");
  if (!vector.open) fill(vector, make("summary", {}, VECTOR));
  vector.ontoggle = () => vector.open && showVector(vector, data, choice);
  choice.listen((changed) => {
    const { layer, head } = choice;
    const words = { "head-off": `Head ${head} of layer ${layer} off`, "attention-off": `Attention of layer ${layer} off`, "feedforward-off": `Feed-forward of layer ${layer} off`, "neuron-off": `Neuron of layer ${layer} off` };
    for (const [id, text] of Object.entries(words)) byId(id).textContent = text;
    for (const id of ["feedforward-off", "neuron-change"]) byId(id).hidden = !data.neurons[layer];
    byId("change-neuron").max = data.shape.feedforward - 1;
    if ((changed.has("token") || changed.has("data")) && vector.open) showVector(vector, data, choice);
    if ((changed.has("data") || (changed.has("token") && data.outcomes?.kind === "tags")) && data.get("losses")) showEffect(data, choice.token);
  });
}

// Below the small maps: the chosen head can be switched off, then scaled.
export function showHeadChange(data, choice) {
  choice.listen((changed) => {
    if (!["layer", "head", "data"].some((name) => changed.has(name))) return;
    const { layer, head } = choice, value = coreOf(data, layer);
    const own = session.state.change.flatMap((change, index) => (change.value === value && change.heads?.includes(head) ? [chip(change, index)] : []));
    fill(byId("head-change"), own.length ? make("ul", { class: "chips", "aria-label": "Changes of the chosen head" }, ...own)
      : button(`Switch off head ${head} of layer ${layer}`, () => addChange({ value, heads: [head], scale: 0 })));
  });
}

// --- a vector of the page or of a second text

const OF_TEXT = ["of this text", "of the second text", "second text minus this text"];

// A vector times a factor, added to the stream after a layer.
function showVector(element, data, choice) {
  const { token } = choice, layers = data.places.filter(({ layer }) => layer !== null);
  const streams = data.places.map(({ label }, i) => ({ section: i ? `stream.${i}` : "embed.sum", row: token, label: `the stream at ${named(data, token)}, ${label}` }));
  const rows = Array.from(data.get("head.ids")?.whole ?? [], (id, row) => ({ section: "head.rows", row, label: `the head’s row of ${quoted(data.vocabulary[id])}` }));
  const vectors = [...streams, ...rows], before = Object.fromEntries([...element.querySelectorAll("select, input, textarea")].map(({ id, value }) => [id, value]));
  const what = select("vector", "Vector", vectors.map(({ label }) => label));
  const whose = select("vector-of", "taken", OF_TEXT);
  const where = select("vector-layer", "added at", layers.map(({ label }) => label));
  const positions = select("vector-positions", "of", ["every position", `${named(data, token)} only`]);
  const number = (id, label, attributes) => [make("label", { for: id }, label), make("input", { type: "number", id, ...attributes })];
  const second = make("div", { id: "vector-second" }, make("label", { for: "vector-text" }, "Second text"), make("textarea", { id: "vector-text", rows: 2, spellcheck: "false" }),
    make("div", { class: "editor-row" }, ...number("vector-position", "at its position", { min: 0, step: 1, placeholder: "last" })));
  const showSecond = () => {
    whose.input.disabled = vectors[what.input.value].section === "head.rows"; // a weight is the same for all texts
    whose.input.title = whose.input.disabled ? "A row of the head is the same for all texts." : "";
    second.hidden = whose.input.disabled || whose.input.value === "0";
  };
  const problem = make("div", { role: "status" });
  const apply = async () => {
    fill(problem);
    const numbers = await vectorOf(vectors[what.input.value], second.hidden ? 0 : Number(whose.input.value), (reason) => fill(problem, make("p", { class: "summary" }, reason)));
    if (!numbers) return;
    const scaled = numbers.map((value) => Number((value * (byId("vector-factor").valueAsNumber || 0)).toPrecision(MOST_DIGITS)));
    await addChange({ value: layers[where.input.value].name, add: scaled, ...(positions.input.value === "1" ? { positions: [token] } : {}) });
  };
  fill(element, make("summary", {}, VECTOR),
    make("div", { class: "editor-row" }, ...what.parts, ...whose.parts), second,
    make("div", { class: "editor-row" }, ...number("vector-factor", "times", { step: 0.5, value: 1 }), ...where.parts, ...positions.parts, button("Add the vector", apply)), problem);
  for (const [id, value] of Object.entries(before)) {
    byId(id).value = value;
    if (byId(id).selectedIndex === -1) byId(id).selectedIndex = 0; // the rows of the head come after the pass
  }
  for (const { input } of [what, whose]) input.onchange = showSecond;
  showSecond();
}

// The numbers of a vector of the shown pass, of a pass over the second text, or their difference; null without one, and
// why to `fail`.
async function vectorOf({ section, row }, whose, fail) {
  const read = async (fields, at, label) => {
    const vectors = (await fetchSections([section], fields, { fail, label }))?.get(section);
    return vectors && vectors.vector(Math.min(at, vectors.shape[0] - 1));
  };
  const own = whose === 1 ? null : await read({}, row);
  if (whose === 0) return own;
  const at = byId("vector-position").valueAsNumber;
  const other = await read({ text: byId("vector-text").value, appended: [], change: [] }, at >= 0 ? at : Infinity, "Second text");
  return other && (own ? other.map((value, i) => value - own[i]) : other);
}

// --- the changes

// A change in words: “head 3 of trunk.blocks.0.attention.core × 0”.
export function inWords({ value, scale, add: added, set, patch, heads, neurons, positions } = {}) {
  const only = [["head", heads], ["neuron", neurons], ["position", positions]].filter(([, indices]) => indices)
    .map(([noun, indices]) => `${noun}${indices.length > 1 ? "s" : ""} ${[].concat(indices).join(", ")}`);
  const size = (operand) => (Array.isArray(operand) ? `a vector of ${operand.length.toLocaleString("en")} numbers` : operand);
  const what = scale !== undefined ? `× ${scale}` : added !== undefined ? `+ ${size(added)}` : set !== undefined ? `= ${size(set)}` : `from ${quoted(patch)}`;
  return `${only.length ? `${only.join(", ")} of ` : ""}${value} ${what}`;
}

function chip(change, index) {
  const words = inWords(change);
  const remove = button("✕", () => removeAt(index), { class: "remove", "aria-label": `Remove: ${words}` });
  if (change.scale === undefined) return make("li", { class: "chip" }, make("span", {}, words), remove);
  const factor = make("output", {}, `× ${change.scale}`);
  const slider = make("input", { type: "range", min: 0, max: 2, step: 0.05, value: change.scale, "aria-label": `Factor: ${words}`,
    oninput: () => { factor.textContent = `× ${slider.value}`; }, onchange: () => replaceAt(index, { ...change, scale: Number(slider.value) }) });
  return make("li", { class: "chip" }, make("span", {}, inWords(change).replace(/ × [^×]*$/, "")), slider, factor, remove);
}

// --- the effect

const ORIGINAL = { words: "in the original pass", change: [] }; // of the numbers that open
const original = { key: "", data: null, cancel: new AbortController() }; // the unchanged pass over the last text

function unchangedPass() {
  const { model, source, text, others, answer, appended } = session.state, key = JSON.stringify([model, source, text, others, answer, appended]);
  if (original.key !== key) {
    original.cancel.abort();
    const cancel = new AbortController();
    Object.assign(original, { key, cancel, data: fetchSections(["logits", "losses", ...(shown.data.outcomes ? ["outcomes.logits"] : [])], { change: [] }, { signal: cancel.signal }) });
  }
  return original.data;
}

async function showEffect(data, token) {
  const now = predictionOf(data, token), loss = mean(data.get("losses").whole);
  if (!now || !session.isShown || (isNumber(data) && !data.get("outcomes.logits"))) return;
  if (!session.state.change.length) return showResult(make("p", { class: "summary" }, ...lossInWords(loss)));
  const plain = await unchangedPass();
  if (!plain) original.key = ""; // to be asked for again
  if (!plain || shown.data !== data || !session.isShown) return;
  const { noun, names, address, shares: after } = now, { shares: before } = predictionOf(plain, token), [best, earlier] = [argMax(after), argMax(before)];
  const prediction = `${noun === "Token" ? "Prediction" : noun === "Tag" ? `Tag of ${named(data, token)}` : noun}: ${quoted(names[best])}, ${best === earlier ? "as before" : `originally ${quoted(names[earlier])}`}. `;
  const line = (id) => make("tr", {}, make("th", { scope: "row" }, make("bdi", { class: "piece" }, visible(names[id]))),
    numberCell(inDigits(after[id]), address(id)),
    numberCell(inDigits(before[id]), opens({ address: address(id), ...ORIGINAL })), difference("td", address(id), after[id] - before[id], { class: "number" }));
  showResult(make("p", { class: "summary" }, prediction, ...(isNumber(data) ? numberInWords(data, plain) : []), ...lossInWords(loss, mean(plain.get("losses").whole))),
    make("div", { class: "scroll" }, make("table", {}, caption(`The most probable ${noun.toLowerCase()}s of both passes`),
      tableHead(...headings([noun, "Changed", "Original", "Difference"])),
      make("tbody", {}, ...new Set([...topOf(after), ...topOf(before)]).values().map(line)))));
}

function showResult(...children) {
  fill(byId("change-effect"), ...children);
  setStale("changes", false);
}

function numberInWords(data, plain) {
  const [after, before] = [data, plain].map((pass) => pass.get("outcomes.logits").whole[0]);
  return [...inBoth("Number", addressOf("task_head", 0), after, before), " "];
}

const lossInWords = (loss, before) => (loss === null ? [] : inBoth(`Loss of the ${shown.data.hasLevels ? "values" : "text"}`, "loss.mean", loss, before));

// A number of the shown pass and, if it is changed, of the original one.
const inBoth = (words, address, after, before) => [`${words}: `, make("span", { "data-address": address }, four(after)),
  ...(before === undefined ? [] : [", originally ", make("span", opens({ address, ...ORIGINAL }), four(before)), "; difference ", difference("span", address, after - before)]), "."];
const difference = (tag, address, value, attributes = {}) => make(tag, { ...attributes, ...opensDifference({ address }, { address, ...ORIGINAL }) }, signed(four, value));
const mean = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null);
const topOf = (shares) => Array.from(shares, (_, id) => id).sort((a, b) => shares[b] - shares[a]).slice(0, SHOWN);
