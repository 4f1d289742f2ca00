// The state of the live page, and the pass that it shows. The state is in the URL: a link opens the same state.
import { goToLinked } from "../choice.js";
import { makeData, open } from "../data.js";
import { byId, fill, make } from "../dom.js";
import { begin, linkProblem, PARTS, showProblem, shown } from "../main.js";
import { showNextEarly } from "../next.js";
import { askLines } from "./server.js";

const FIRST = ["logits", "stream.sizes"]; // sections that arrive with the pass
export const STATE = { model: "", source: "", text: "", others: [], answer: 0, appended: [], change: [], second: "", otherModel: "", otherText: "" };
const ENCODED = new Set(["others", "appended", "change"]); // lists, as JSON in the URL

const listeners = [];
const OF_MODEL = ["outline", "vocabulary"];
const models = new Map(); // the sections of each model that are fetched once
const inView = new Set(); // sections of the page
let mounted = new Set();
let running = new AbortController();

export const session = {
  state: { ...STATE },
  listen: (listener) => listeners.push(listener),
  nextLogits: null, // after the text
  isShown: false, // the shown pass is of this state
  onShown: () => {}, // after a pass is shown, or the logits that come before it
  // Change the state and show its pass; what the page still asked for is cancelled. Returns whether it was refused.
  // edit: of a typed text, {isNew}: an edit that begins is one more entry of the browser's history, as a continuation is.
  async update(changes, edit = null, isNewEntry = edit?.isNew) {
    Object.assign(session.state, changes);
    if (session.state.answer >= session.state.others.length) session.state.answer = 0; // the answers became fewer
    writeUrl(isNewEntry);
    if (edit) edit.isNew = false;
    Object.assign(session, { nextLogits: null, isShown: false });
    if (shown.data) setAllStale();
    for (const listener of listeners) listener(session.state, edit);
    running.abort();
    running = new AbortController();
    return showPass(running.signal);
  },
  // Keep in the link what no pass depends on.
  note(changes) {
    Object.assign(session.state, changes);
    writeUrl();
  },
};

// What the page shows of another state than the present one is marked as stale, and cannot be used once the state is
// refused. Panels have controls that stay in use, so of them the results are marked.
const RESULTS = { "text-section": "strip", changes: "change-effect", patch: "patch-map", compare: "compared", tour: "tour-words" };

export function setStale(id, isStale, isRefused = false) {
  const element = byId(RESULTS[id] ?? id);
  if (!element) return;
  element.ariaBusy = isStale ? "true" : null;
  element.inert = isRefused;
}

const setAllStale = (isRefused) => ["facts", ...Object.keys(PARTS)].forEach((id) => setStale(id, true, isRefused));

// The state has no pass, for a reason.
export function refuse(reason) {
  Object.assign(session, { nextLogits: null, isShown: false });
  showProblem(reason);
  session.onShown();
  if (!shown.data) return;
  setAllStale(true);
  if (session.state.change.length) fill(byId("change-effect"), make("p", { class: "summary" }, reason));
}

export const continueWith = (appended) => session.update({ appended }, null, true);

// A part that is scaled or patched again has one entry. Vectors are added each time.
export function addChange(change) {
  const { change: before } = session.state, index = before.findIndex((each) => change.add === undefined && partOf(each) === partOf(change));
  return session.update({ change: index < 0 ? [...before, change] : before.with(index, change) });
}
const partOf = ({ scale, ...rest }) => JSON.stringify([scale === undefined, ...Object.entries(rest).sort()]);

// The fields of a request about the shown pass. source: what a translation model reads; others: further texts of an example.
// answer: the index of the one whose pass is shown.
export const passFields = ({ model, source, text, others, answer, appended, change } = session.state) => ({ model, ...(source && { source }), ...(others.length && { others }), ...(Number(answer) && { answer: Number(answer) }), text, appended, change });

// A pass with sections: `data.put` has taken all of them when this ends. A model is described once, in two sections.
// showEarly: takes logits that come before the pass, where the text goes on.
async function readPass(fields, sections, signal, askOf, showEarly = () => {}) {
  const ofModel = models.get(fields.model) ?? models.set(fields.model, new Map()).get(fields.model), known = new Map(ofModel);
  let pass = null, data = null;
  await askLines("explore", { ...fields, sections: [...OF_MODEL.filter((name) => !known.has(name)), ...sections] }, signal, async (line) => {
    if (line.next) return known.has("vocabulary") && showEarly((await open(line.next.section)).whole, known.get("vocabulary"), line.next.isExact);
    if (line.pass) ({ pass } = line);
    else if (OF_MODEL.includes(line.section.name)) {
      const { name, value } = await open(line.section);
      known.set(name, value);
      if (name === "outline" || !known.get("outline").hasLevels) ofModel.set(name, value); // the values of tokens follow the series
    } else await data.put(line.section);
    if (data || !OF_MODEL.every((name) => known.has(name))) return;
    const structure = { ...known.get("outline"), ...pass, vocabulary: known.get("vocabulary") };
    data = makeData(structure, askOf(structure));
  });
  return data;
}

async function showPass(signal) {
  const wanted = new Set(FIRST);
  if (shown.data?.model === session.state.model) wanted.add(`attention.${shown.choice.layer}`);
  let data = null;
  await busy(signal, async () => {
    if (!session.state.text) throw new Error("The text is empty. Write at least one character.");
    data = await readPass(passFields(), wanted, signal, (structure) => makeAsk(structure, signal), showEarly);
  }, () => {
    Object.assign(session, { nextLogits: data.get("logits").whole, isShown: true });
    data.append = (id) => session.update(continued(data, id), null, true);
    if (data.outcomes?.kind === "choice") data.showAnswer = (answer) => session.update({ answer });
    if (data.outcomes?.kind === "orders") data.otherOrder = { words: "with the texts in the other order", text: session.state.others[0], others: [session.state.text] };
    data.switchOff = (change) => addChange({ ...change, scale: 0 });
    showParts(data);
    showProblem([damage, isLinked ? linkProblem() : ""].filter(Boolean).join(" "));
    if (isLinked) goToLinked();
    damage = "";
    isLinked = false;
    session.onShown();
  }, refuse);
  return !session.isShown && !signal.aborted;
}

// The distribution after a text before its pass is read.
function showEarly(logits, vocabulary, isExact) {
  session.nextLogits = logits;
  setStale("next-section", false);
  showNextEarly(logits, vocabulary, isExact, (id) => continueWith([...session.state.appended, id]));
  session.onShown();
}

// The state with one more token. The head of a task reads the last text of the pass, or the shown answer, to its end.
function continued(data, id) {
  const { text, others, appended } = session.state, piece = data.vocabulary[id];
  if (!data.outcomes) return { appended: [...appended, id] };
  return others.length ? { others: others.map((each, i) => (i === data.outcomes.first ? each + piece : each)) } : { text: text + piece };
}

function showParts(data) {
  begin(data);
  setStale("facts", false);
  mounted = new Set();
  for (const id of [...inView, ...aroundFocus()]) mount(id);
  document.documentElement.dataset.ready = "true";
}

const AWAITED = new Set(["changes", "compare", "patch"]); // their results come later, or are of another text

function mount(id) {
  if (!shown.choice || mounted.has(id)) return;
  mounted.add(id);
  for (const show of PARTS[id]) shown.choice.show(show);
  if (!AWAITED.has(id)) setStale(id, false);
}

const mountAll = () => Object.keys(PARTS).forEach(mount);

// Show all parts, and wait for their numbers: what arrives may ask for more.
export async function readAll() {
  mountAll();
  while (numRunning) await new Promise((done) => setTimeout(done, 50));
}

// Parts are shown when they come into view, or when the focus is in a part next to them, so that the Tab key finds their
// controls: the others are not computed.
export function watchParts() {
  document.addEventListener("focusin", () => aroundFocus().forEach(mount));
  addEventListener("beforeprint", () => {
    const before = new Set(mounted), missing = [...document.querySelectorAll("main section")].filter(({ id, hidden }) => id in PARTS && !before.has(id) && !hidden);
    mountAll();
    const names = missing.map((section) => section.querySelector("h2").textContent).join(", ");
    const words = `${names ? `Missing here, since they had not been in view: ${names}.` : "Some numbers were still being read."} “Print” under “Take it along” reads all parts before it prints.`;
    fill(byId("footer"), ...(numRunning ? [make("p", { class: "cut" }, words)] : []));
  });
  addEventListener("afterprint", () => fill(byId("footer")));
  const observer = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) inView.delete(target.id);
      else { inView.add(target.id); mount(target.id); }
    }
  }, { rootMargin: "200px" });
  for (const id of Object.keys(PARTS)) {
    const element = document.getElementById(id);
    if (element) observer.observe(element);
  }
}

// The part that has the focus, or precedes it, with the ones before and after it.
function aroundFocus() {
  const parts = [...document.querySelectorAll(Object.keys(PARTS).map((id) => `#${id}`))].filter(({ hidden }) => !hidden);
  const isReached = (part) => part.contains(document.activeElement) || !(document.activeElement.compareDocumentPosition(part) & Node.DOCUMENT_POSITION_FOLLOWING);
  const at = parts.findLastIndex(isReached);
  return parts.slice(Math.max(0, at - 1), at + 2).map(({ id }) => id);
}

// Collects the sections that the parts ask for, and fetches them together.
function makeAsk(structure, signal) {
  const available = new Set(structure.available), asked = new Set();
  const isAvailable = (name) => available.has(name) || structure.byPosition.some((prefix) => name.startsWith(prefix)); // one for each position, not listed
  let waiting = [];
  const fetchWaiting = () => busy(signal, async () => {
    await new Promise((done) => setTimeout(done)); // until all parts have asked
    const sections = waiting;
    waiting = [];
    const { data, choice } = shown;
    const arrived = oncePerFrame(() => choice === shown.choice && !signal.aborted && choice.update());
    await askLines("explore", { ...passFields(), sections }, signal, async ({ section }) => {
      if (!section) return;
      await data.put(section);
      arrived();
    });
    await arrived();
  }, () => {});
  return (name) => {
    if (!isAvailable(name) || asked.has(name)) return;
    asked.add(name);
    waiting.push(name);
    if (waiting.length === 1) fetchWaiting();
  };
}

// A function that plans an action for the next frame, unless it is planned; it returns the promise of its end.
export function oncePerFrame(action) {
  let planned = null;
  return () => {
    planned ??= new Promise((done) => requestAnimationFrame(() => { planned = null; action(); done(); }));
    return planned;
  };
}

// Some sections of the shown pass or, with other fields, of another one; null if they cannot be had, and why to `fail`.
// label: of the field of the page that has the text of the other one, which replaces the name in a request.
export async function fetchSections(sections, fields = {}, { signal = running.signal, fail = showProblem, label = "text" } = {}) {
  let whole = null;
  const named = (reason) => fail(reason.replace(/^text:/, `${label}:`));
  await busy(signal, async () => { whole = await readPass({ ...passFields(), ...fields }, sections, signal, () => () => {}); }, () => {}, named);
  return signal.aborted ? null : whole;
}

// Runs a request; the page shows that it is busy, and the error of one that was not cancelled, or `fail` does.
let numRunning = 0;
export async function busy(signal, work, done, fail = showProblem) {
  document.documentElement.dataset.requests = ++numRunning;
  try {
    await work();
    if (!signal.aborted) done();
  } catch (error) {
    if (!signal.aborted) fail(error.message);
  } finally {
    document.documentElement.dataset.requests = --numRunning;
  }
}

let damage = "", isLinked = false; // of a link that was opened, until its pass is shown

// The fields of the link. problem: one that is known already.
export function readUrl(problem) {
  damage = problem;
  isLinked = true;
  const given = new URLSearchParams(location.hash.slice(1));
  const state = {};
  for (const name of Object.keys(STATE)) {
    if (given.has(name)) state[name] = ENCODED.has(name) ? parsed(name, given.get(name)) : given.get(name);
  }
  return state;
}

// The list of a field, without what cannot be read.
function parsed(name, text) {
  let list = null;
  try {
    list = JSON.parse(text);
  } catch {
    // as for JSON that is not a list
  }
  const read = Array.isArray(list) ? list.filter((each) => each !== null) : [];
  if (read.length !== list?.length) damage = `The link is damaged: its field “${name}” cannot be read.`;
  return read;
}

function writeUrl(isNewEntry) {
  const values = new URLSearchParams(location.hash.slice(1));
  for (const [name, value] of Object.entries(session.state)) {
    const text = ENCODED.has(name) ? (value.length ? JSON.stringify(value) : "") : value;
    if (text || (name === "text" && !session.state.source)) values.set(name, text); // an empty text is not the first one
    else values.delete(name);
  }
  history[isNewEntry ? "pushState" : "replaceState"](null, "", `#${values}`);
}
