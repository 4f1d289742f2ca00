// What comes next: the distribution after the text under temperature, top-k and top-p, and after the chosen token.
import { hasLens, readLens, whyMissing } from "./data.js";
import { bar, barHeading, button, byId, caption, fill, headings, hint, make, numberCell, tableHead } from "./dom.js";
import { addressOf, count, marksIn, named, probability as inDigits, quoted, storedProbability, visible } from "./format.js";

function sortedIds(logits) {
  const order = Uint32Array.from(logits, (_, i) => i);
  return order.sort((a, b) => logits[b] - logits[a] || a - b);
}

// The distribution under temperature, top-k, top-p and min-p, in this order, as defined in generation/filters.py.
// Temperature 0 keeps the most probable token only. Top-k keeps tokens that tie with the k-th. Top-p keeps the most
// probable tokens until their probabilities reach the mass. Min-p keeps tokens with this share of the largest probability.
// Returns the probabilities of the first `kept` ids of `order`.
function distribution(logits, order, { temperature, topK, topP, minP }) {
  const largest = logits[order[0]];
  if (temperature === 0) return { kept: 1, probabilities: Float64Array.of(1) };
  const scaled = Float64Array.from(order, (id) => (logits[id] - largest) / temperature);
  let kept = scaled.length;
  if (topK !== null && topK < kept) {
    const smallest = scaled[topK - 1];
    for (kept = topK; kept < scaled.length && scaled[kept] === smallest; kept++);
  }
  let probabilities = normalized(scaled, kept);
  if (topP < 1) {
    let before = 0, within = 0;
    while (within < kept && before < topP) before += probabilities[within++];
    kept = within;
    probabilities = normalized(scaled, kept);
  }
  const least = Math.log(minP);
  if (minP > 0 && scaled[kept - 1] < least) {
    while (scaled[kept - 1] < least) kept--;
    probabilities = normalized(scaled, kept);
  }
  return { kept, probabilities };
}

function normalized(scaled, kept) {
  const shares = new Float64Array(kept);
  let total = 0;
  for (let i = 0; i < kept; i++) total += shares[i] = Math.exp(scaled[i]);
  for (let i = 0; i < kept; i++) shares[i] /= total;
  return shares;
}

const SLIDER_STEPS = 1000;

// A labelled slider and a box for the exact number. The scale of the slider may be nonlinear.
// scale: {toShare(value), fromShare(share)} converts between the number and 0 ... 1.
function makeControl({ id, label, hint, low, high, step, value, scale, change }) {
  const slider = make("input", { type: "range", id, min: 0, max: SLIDER_STEPS, step: 1, "aria-describedby": `${id}-hint` });
  const box = make("input", { type: "number", id: `${id}-number`, min: low, max: high, step, inputmode: "decimal", "aria-label": `${label}, exact number` });
  const put = (next, from) => {
    value = Math.min(high, Math.max(low, next));
    if (from !== slider) slider.value = Math.round(scale.toShare(value) * SLIDER_STEPS);
    if (from !== box) box.value = value;
    slider.setAttribute("aria-valuetext", value);
  };
  slider.addEventListener("input", () => { put(scale.fromShare(slider.value / SLIDER_STEPS), slider); change(value); });
  box.addEventListener("input", () => {
    if (box.value !== "" && Number.isFinite(box.valueAsNumber)) { put(box.valueAsNumber, box); change(value); }
  });
  box.addEventListener("change", () => put(value));
  put(value);
  const element = make("div", { class: "control" },
    make("label", { for: id }, label), slider, box, make("p", { class: "hint", id: `${id}-hint` }, hint));
  return { element, put: (next) => { put(next); change(value); } };
}

const linearScale = (low, high, step) => ({
  toShare: (value) => (value - low) / (high - low),
  fromShare: (share) => Number((Math.round((low + share * (high - low)) / step) * step).toFixed(4)),
});

// Whole numbers from 1 to `high` on a logarithmic scale.
const logScale = (high) => ({
  toShare: (value) => (high === 1 ? 1 : Math.log(value) / Math.log(high)),
  fromShare: (share) => Math.round(high ** share),
});

// A table of tokens, or of what `noun` names, with their probabilities as bars. A full bar is probability 1 in every table.
// rows: [{id, text, probability, address, mark, before, addressBefore}]; digits: the probability as text; append: in a live page, continues with a token
export function barTable(title, rows, digits, { append = null, noun = "Token" } = {}) {
  const piece = ({ id, text }) => {
    const name = make("bdi", { class: "piece" }, visible(text));
    return append ? button(name, () => append(id), { class: "link", title: "Continue with this token" }) : name;
  };
  const hasBefore = rows[0]?.before !== undefined;
  const line = ({ id, text, probability, address, mark, before, addressBefore }) => make("tr", mark ? { class: "marked" } : {},
    make("th", { scope: "row" }, piece({ id, text }), ...(mark ? [make("span", { class: "mark" }, mark)] : [])),
    ...(hasBefore ? [make("td", { class: "number before", "data-address": addressBefore }, digits(before))] : []),
    numberCell(digits(probability), address),
    bar(probability, before));
  return make("table", { class: "bars" },
    caption(`${title}; a full bar is probability 1`),
    tableHead(...headings(hasBefore ? [noun, "Before", "After"] : [noun, "Probability"]), barHeading()),
    make("tbody", {}, ...rows.map(line)));
}

const SHOWN = 10;
const MODELS = { temperature: 1, topK: null, topP: 1, minP: 0 }; // the model's distribution
const settings = { ...MODELS }; // as in the URL
const FIELDS = { temperature: ["temperature", 0, 2], topK: ["top_k", 1, Infinity], topP: ["top_p", 0.01, 1], minP: ["min_p", 0, 1] }; // of the URL, and their limits

// Takes the settings of the URL. Returns what is wrong with them in words.
export function readSettings() {
  const given = new URLSearchParams(location.hash.slice(1)), wrong = [];
  for (const [name, [field, low, high]] of Object.entries(FIELDS)) {
    const text = given.get(field), number = text ? Number(text) : NaN, held = Math.min(high, Math.max(low, name === "topK" ? Math.trunc(number) : number));
    settings[name] = Number.isFinite(held) ? held : MODELS[name];
    if (text && number !== settings[name]) wrong.push([`${field} ${visible(text)}`, settings[name] === null ? `no ${field}` : `${field} ${settings[name]}`]);
  }
  const list = (side) => wrong.map((each) => each[side]).join(", ");
  return wrong.length ? `The link names ${list(0)}, which sampling does not allow. The page uses ${list(1)}.` : "";
}

function writeSettings() {
  const values = new URLSearchParams(location.hash.slice(1));
  for (const [name, [field]] of Object.entries(FIELDS)) {
    if (settings[name] === MODELS[name]) values.delete(field);
    else values.set(field, settings[name]);
  }
  history.replaceState(null, "", `#${values}`);
}

// The filters that are not neutral: [name, setting].
export const changedSettings = () => Object.entries(FIELDS).filter(([name]) => settings[name] !== MODELS[name]).map(([name, [field]]) => [field, settings[name]]);
const namedSettings = () => changedSettings().map((each) => each.join("=")).join(","); // in the names of numbers after them

function draw({ kept, probabilities }, order) {
  let left = Math.random();
  for (let i = 0; i < kept; i++) if ((left -= probabilities[i]) < 0) return order[i];
  return order[kept - 1];
}

// The logits after the last token, with what `barTable` needs; position: of the addresses of their probabilities.
function drawNext({ logits, order, unfiltered, vocabulary, append, position, text = [] }) {
  const { kept, probabilities } = distribution(logits, order, settings);
  const filters = namedSettings(), address = (name, id) => (position === null ? null : addressOf(name, position, id));
  const rows = Array.from(order.subarray(0, SHOWN), (id, i) => ({
    id, text: vocabulary[id], probability: probabilities[i] ?? 0, address: address(filters ? `probabilities.filtered(${filters})` : "probabilities", id),
    ...(filters && { before: unfiltered[i], addressBefore: address("probabilities", id) }),
  }));
  fill(byId("next-table"), barTable(`The ${count(rows.length, "most probable token")} of ${logits.length.toLocaleString("en")}`, rows, inDigits, { append }));
  byId("next-marks").textContent = marksIn(rows.map((row) => row.text), text);
  return kept;
}

const readLogits = (logits) => {
  const order = sortedIds(logits);
  return { logits, order, unfiltered: distribution(logits, order, MODELS).probabilities };
};

// The distribution after a text whose pass is still read, from logits that came before it.
export function showNextEarly(logits, vocabulary, isExact, append) {
  readSettings();
  drawNext({ ...readLogits(logits), vocabulary, append, position: null });
  byId("next-section").classList.toggle("provisional", !isExact);
  byId("next-summary").textContent = isExact ? "The other parts of the page follow." : "Provisional: read from kept keys and values, so the last digits may differ. The whole pass is being read …";
}

// The distribution after the last token, from the logits of the full vocabulary.
export function showNext(data, choice) {
  readSettings();
  byId("next-section").classList.remove("provisional");
  const read = readLogits(data.get("logits").whole), { logits, order, unfiltered } = read;
  const size = logits.length;

  const update = () => {
    const kept = drawNext({ ...read, vocabulary: data.vocabulary, append: data.append, position: data.last, text: data.tokens.map((token) => token.text) });
    let mass = 0;
    for (let i = 0; i < kept; i++) mass += unfiltered[i];
    fill(byId("next-summary"), ...(kept === size ? []
      : [`${count(kept, "token")} of ${size.toLocaleString("en")} can be sampled; without filters ${kept === 1 ? "it has" : "they have"} `,
        make("span", { "data-address": addressOf(`probabilities.kept(${namedSettings()})`, data.last) }, inDigits(Math.min(1, mass))), " of the probability."]));
  };
  const set = (name, read = (value) => value) => (value) => { settings[name] = read(value); writeSettings(); update(); };
  const controls = [
    makeControl({ id: "temperature", label: "Temperature", hint: "below 1 sharpens the distribution; 0 selects the most probable token", low: 0, high: 2, step: 0.05, value: settings.temperature, scale: linearScale(0, 2, 0.05), change: set("temperature") }),
    makeControl({ id: "top-k", label: "Top-k", hint: "keep the k most probable tokens; all at the right end", low: 1, high: size, step: 1, value: settings.topK ?? size, scale: logScale(size), change: set("topK", (k) => (k >= size ? null : Math.round(k))) }),
    makeControl({ id: "top-p", label: "Top-p", hint: "keep the most probable tokens up to this total probability", low: 0.01, high: 1, step: 0.01, value: settings.topP, scale: linearScale(0, 1, 0.01), change: set("topP") }),
    makeControl({ id: "min-p", label: "Min-p", hint: "drop tokens below this share of the largest probability", low: 0, high: 1, step: 0.01, value: settings.minP, scale: linearScale(0, 1, 0.01), change: set("minP") }),
  ];
  const put = ({ temperature, topK, topP, minP }) => [temperature, topK ?? size, topP, minP].forEach((value, i) => controls[i].put(value));
  const reset = button("Reset to the model’s distribution", () => put(MODELS));
  choice.on(["settings"], () => put({ ...settings }));
  const sample = data.append && button("Sample a token", () => data.append(draw(distribution(logits, order, settings), order)));
  fill(byId("controls"), ...controls.map((control) => control.element), make("div", { class: "editor-row" }, reset, ...(sample ? [sample] : [])));
  if (changedSettings().length) byId("sampling").open = true;
  update();
}

// The prediction after the chosen token, and the probability of the token that follows in the text.
export function showHere(data, choice) {
  const show = () => {
    const position = choice.token;
    byId("here-title").textContent = `After ${named(data, position)}`;
    byId("here-summary").textContent = position === data.last ? "This is the last token: see “What comes next”. Choose an earlier one to see what was expected there." : "";
    if (position === data.last) return fill(byId("here"));
    if (!hasLens(data, position)) return fill(byId("here"), hint("The prediction here is not in this page; it is kept for the last positions."));
    const reading = readLens(data, data.lensPlaces.length - 1, position);
    if (!reading) return fill(byId("here"), hint(whyMissing(data)));
    const { top, following: probability, rank } = reading;
    const following = data.tokens[position + 1];
    const rows = top.map((token) => ({ text: data.vocabulary[token.id], probability: token.probability, address: addressOf("probabilities", position, token.id), mark: following.id === token.id ? "follows" : "" }));
    byId("here-summary").textContent = `The text continues with ${quoted(following.text)}: probability ${storedProbability(probability)}, rank ${(rank + 1).toLocaleString("en")}. `;
    if (data.canLearn) byId("here-summary").append(make("a", { href: "#learning-section" }, "Learn it"));
    fill(byId("here"), barTable(`The ${count(rows.length, "most probable token")}, unfiltered`, rows, storedProbability));
  };
  choice.on(["token", "data"], show);
}
