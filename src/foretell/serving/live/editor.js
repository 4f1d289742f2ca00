// The text to edit, the source of a translation, the model, and the tree of continuations.
import { argMax } from "../data.js";
import { button, byId, fill, make } from "../dom.js";
import { quoted, visible } from "../format.js";
import { shown } from "../main.js";
import { ask } from "./server.js";
import { busy, continueWith, readUrl, refuse, session, STATE } from "./session.js";
import { makeSteps } from "./steps.js";
import { makeTour } from "./tour.js";

// What a model reads when no text is given: by `reads` of GET /explore. The series has a trend and a season.
const SERIES = Array.from({ length: 48 }, (_, t) => Math.round(100 + t / 2 + 20 * Math.sin((t * Math.PI) / 6))).join(" ");
const SENTENCE = "The return value of the function is", NEUTRAL = "This is a text.";
const FIRST = {
  text: { source: "", text: SENTENCE, others: [] }, source: { source: SENTENCE, text: "", others: [] }, values: { source: "", text: SERIES, others: [] },
  example: { source: "", text: NEUTRAL, others: [] }, pair: { source: "", text: NEUTRAL, others: ["This is another text."] }, choice: { source: "", text: "Which answer is it?", others: ["The first.", "The second."] },
};
const WORDS = { text: "Text", source: "Translation", values: "Values, oldest first, with spaces or commas between them; - for a missing one", example: "Text", pair: "First text", choice: "Question" };
const OTHERS = { pair: "Second text", choice: "Answers, one on each line" };
const HINTS = {
  text: "Edit the text: everything follows. Click what comes next to continue.",
  values: "Edit the values: everything follows. Click a next value to continue with it; the scale stays as it is.",
  example: "Edit the text: the prediction and everything else follow.",
  pair: "Edit the texts: the prediction and everything else follow.",
  choice: "Edit the question or the answers: the prediction and everything else follow.",
};
const isAlike = (a, b) => a === b || [a, b].every((reads) => ["text", "example", "source"].includes(reads)); // a text of one is a text of the other
const PAUSE = 60; // milliseconds after a key, so that fast typing asks for fewer passes
const SETTLED = 1000; // milliseconds after a key, until an edit has ended; leaving the field ends it, too

// The link to an example: {title, text, layer, head, token}.
const linkOf = (model, { title, others, ...state }) => `#${new URLSearchParams({ model, ...state, ...(others && { others: JSON.stringify(others) }) })}`;

// The whole state of the URL. Without a text, a model begins with its first example, which becomes the URL.
export function stateOfUrl(served) {
  const given = new URLSearchParams(location.hash.slice(1)), linked = given.get("model");
  const { name, reads, examples: [example] } = served.find((each) => each.name === linked) ?? served[0];
  const problem = linked && linked !== name ? `The link names the model ${quoted(linked)}, which this server does not have. The page shows ${name}.` : "";
  if (example && !given.has("text") && !given.has("source")) {
    const link = new URLSearchParams(linkOf(name, example).slice(1));
    for (const [field, value] of given) link.set(field, value);
    history.replaceState(null, "", `#${link}`);
  }
  return { ...STATE, ...FIRST[reads], ...readUrl(problem), model: name };
}

// A state of a translation model with its translation of the source, unless there is a text.
async function translated(state, signal) {
  if (!state.source || state.text) return state;
  const { data: [{ translation }] } = await ask("v1/translate", { model: state.model, input: state.source }, signal);
  return { ...state, text: translation || " " };
}

let translating = new AbortController();

// Show a state when its source is translated; an earlier translation that still runs is given up. Returns whether the
// state was refused. edit: as of `session.update`.
export async function showTranslated(state, edit = null) {
  translating.abort();
  const { signal } = translating = new AbortController();
  let ready = null, isRefused = null;
  await busy(signal, async () => { ready = await translated(state, signal); }, () => { isRefused = session.update(ready, edit); }, refuse);
  return isRefused ?? !signal.aborted;
}

export function showEditor(served) {
  const readsOf = (name) => served.find((each) => each.name === name)?.reads ?? "text";
  const source = make("textarea", { id: "source", rows: 2, spellcheck: "false", dir: "auto" });
  const ofSource = make("div", { id: "source-field" }, make("label", { for: "source" }, "Source: the model translates it when you edit it"), source);
  const names = served.map(({ name }) => name);
  const text = make("textarea", { id: "text", rows: 1, spellcheck: "false", dir: "auto", "aria-describedby": "trouble text-hint" });
  const others = make("textarea", { id: "others", rows: 2, spellcheck: "false", dir: "auto" }), othersLabel = make("label", { for: "others" });
  const ofOthers = make("div", { id: "others-field" }, othersLabel, others);
  const readOthers = () => (readsOf(session.state.model) === "pair" ? [others.value] : others.value.split("\n").filter((line) => line.trim()));
  const model = make("select", { id: "model" }, ...names.map((name) => make("option", { value: name }, name)));
  let timer = 0, lastKey = -Infinity;
  const edit = { isNew: false };
  const onEdit = (field, show) => {
    field.addEventListener("input", () => {
      if (performance.now() - lastKey > SETTLED) edit.isNew = true;
      lastKey = performance.now();
      clearTimeout(timer);
      timer = setTimeout(show, PAUSE);
    });
    field.addEventListener("blur", () => { lastKey = -Infinity; });
  };
  for (const field of [text, others]) onEdit(field, () => session.update({ text: text.value, ...(ofOthers.hidden ? {} : { others: readOthers() }), appended: [] }, edit));
  onEdit(source, () => source.value.trim() && showTranslated({ source: source.value, model: model.value, text: "", appended: [] }, edit));
  model.addEventListener("change", async () => {
    const { source: last, text: own, model: before } = session.state, chosen = model.value, reads = readsOf(chosen), sentence = last || own;
    const kept = reads === "source" ? { source: sentence, text: "" } : { source: "", text: sentence };
    const isKept = sentence && isAlike(reads, readsOf(before));
    if (isKept && !(await showTranslated({ model: chosen, answer: 0, appended: [], change: [], second: "", otherModel: "", otherText: "", ...kept }))) return;
    history.replaceState(null, "", `#${new URLSearchParams({ model: chosen })}`); // the model cannot read this text
    showTranslated(stateOfUrl(served));
  });
  byId("options").prepend(make("label", { for: "model" }, "Model"), model, makeSteps(served), makeTour());
  fill(byId("live"), make("div", { class: "editor" }, ofSource, make("label", { for: "text", id: "text-label" }), text, ofOthers, byId("trouble")));
  fill(byId("live-more"), make("p", { class: "hint examples", id: "examples" }));
  byId("attention-section").after(make("div", { id: "live-panels" }));
  session.listen((state, isTyped) => {
    const put = (field, value) => { if (!isTyped || document.activeElement !== field) field.value = value; }; // typing goes on
    if (!isTyped) { clearTimeout(timer); lastKey = -Infinity; }
    put(text, state.text);
    put(source, state.source);
    const reads = readsOf(state.model);
    ofSource.hidden = reads !== "source";
    ofOthers.hidden = !OTHERS[reads];
    othersLabel.textContent = OTHERS[reads] ?? "";
    put(others, state.others.join("\n"));
    others.rows = Math.max(2, state.others.length);
    byId("text-label").textContent = WORDS[reads];
    byId("text-label").classList.toggle("sr", WORDS[reads] === "Text"); // as its heading
    byId("text-hint").textContent = HINTS[reads] ?? HINTS.text;
    model.value = state.model;
    const examples = served.find(({ name }) => name === state.model)?.examples ?? [];
    byId("examples").hidden = !examples.length;
    fill(byId("examples"), "Examples: ", ...examples.map((example) => make("a", { href: linkOf(state.model, example) }, example.title)));
    byId("model-name").textContent = state.model;
    document.title = `${state.model} · foretell`;
  });
  showContinuations();
}

// Continuations of the text that were shown: a tree, whose branches can be taken again.
function showContinuations() {
  let root = null, of = "";
  const draw = () => {
    const { model, source, text, others, appended } = session.state, key = JSON.stringify([model, source, text, others]);
    if (of !== key) { root = new Map(); of = key; }
    let node = root;
    for (const [i, id] of appended.entries()) {
      if (!node.has(id)) node.set(id, new Map());
      node = node.get(id);
      if (session.isShown) node.text = pieceAt(i);
    }
    const best = session.nextLogits && argMax(session.nextLogits);
    byId("continuations").hidden = Boolean(shown.data?.outcomes); // the text itself is continued
    fill(byId("continuations"),
      make("div", { class: "editor-row" },
        button(`Add the most probable ${shown.data?.hasLevels ? "value" : "token"}`, () => best !== null && continueWith([...appended, best]), { "aria-disabled": best === null ? "true" : false }),
        ...(appended.length ? [button("Remove the last", () => continueWith(appended.slice(0, -1))),
          button("Into the text", () => session.update({ text: text + appended.map((_, i) => (shown.data.hasLevels ? ` ${pieceAt(i)}` : pieceAt(i))).join(""), appended: [] }))] : [])),
      ...(root.size ? [make("nav", { class: "branches", "aria-label": "Continuations" }, branches(root, [], appended))] : []));
  };
  session.listen(draw);
  session.onShown = draw;
}

const textOf = (id) => shown.data?.vocabulary?.[id] ?? "";

// The text of an appended token. The vocabulary has the value of a bin for the next time; others may have another one.
function pieceAt(i) {
  const { appended } = session.state;
  return session.isShown ? shown.data.tokens.at(i - appended.length).text : textOf(appended[i]);
}

function branches(node, path, current) {
  return make("ul", {}, ...[...node].map(([id, after]) => {
    const own = [...path, id];
    const isCurrent = own.length === current.length && own.every((each, i) => each === current[i]);
    const text = after.text ?? textOf(id);
    const chip = make("button", { type: "button", class: "token", "aria-current": isCurrent ? "true" : false, title: quoted(text),
      onclick: () => continueWith(own) }, make("bdi", {}, visible(text)));
    return make("li", {}, chip, ...(after.size ? [branches(after, own, current)] : []));
  }));
}
