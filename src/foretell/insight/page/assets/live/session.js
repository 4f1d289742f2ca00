// The state of the live page, and the pass that it shows. The state is in the URL: a link opens the same state.
import { makeData } from "../data.js";
import { begin, PARTS, showProblem, shown } from "../main.js";
import { askLines } from "./server.js";

const FIRST = ["logits", "stream.sizes"]; // sections that arrive with the pass
const STATE = { model: "", text: "", appended: [], change: [], second: "", otherModel: "", otherText: "" };
const ENCODED = new Set(["appended", "change"]); // as JSON in the URL

const listeners = [];
const vocabularies = new Map(); // by model
const inView = new Set(); // sections of the page
let mounted = new Set();
let running = new AbortController();

export const session = {
  state: { ...STATE },
  listen: (listener) => listeners.push(listener),
  onShown: () => {}, // after a pass is shown
  // Change the state and show its pass; what the page still asked for is cancelled.
  async update(changes) {
    Object.assign(session.state, changes);
    writeUrl();
    for (const listener of listeners) listener(session.state);
    running.abort();
    running = new AbortController();
    await showPass(running.signal);
  },
};

// The fields of a request about the shown pass.
export const passFields = ({ model, text, appended, change } = session.state) => ({ model, text, appended, change });

// The texts of a model's tokens; fetched once.
export async function vocabularyOf(fields, signal) {
  if (!vocabularies.has(fields.model)) {
    const data = await fetchSections(["vocabulary"], fields, signal);
    if (data) vocabularies.set(fields.model, data.get("vocabulary").value);
  }
  return vocabularies.get(fields.model);
}

async function showPass(signal) {
  const { model } = session.state;
  const layer = shown.choice?.layer ?? 0;
  const wanted = new Set([...FIRST, ...(vocabularies.has(model) ? [] : ["vocabulary"])]);
  if (shown.data) wanted.add(`attention.${Math.min(layer, shown.data.shape.layers - 1)}`);
  let data = null;
  await busy(signal, () => askLines("explore", { ...passFields(), sections: [...wanted] }, signal, async ({ structure, section }) => {
    if (structure) data = makeData(structure, makeAsk(structure, signal));
    else await data.put(section);
  }), () => {
    if (data.has("vocabulary")) vocabularies.set(model, data.get("vocabulary").value);
    data.vocabulary = vocabularies.get(model);
    data.append = (id) => session.update({ appended: [...session.state.appended, id] });
    showProblem("");
    showParts(data);
    session.onShown();
  });
}

function showParts(data) {
  const before = shown.choice, last = shown.data?.last;
  const wasLast = !before || before.token === last;
  begin(data, before ? { layer: before.layer, head: before.head, ...(wasLast ? {} : { token: before.token }) } : {});
  mounted = new Set();
  inView.forEach(mount);
  document.documentElement.dataset.ready = "true";
}

function mount(id) {
  if (!shown.choice || mounted.has(id)) return;
  mounted.add(id);
  for (const show of PARTS[id]) shown.choice.show(show);
}

// Parts are shown when they come into view: the others are not computed.
export function watchParts() {
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

// Collects the sections that the parts ask for, and fetches them together.
function makeAsk(structure, signal) {
  const available = new Set(structure.available), asked = new Set();
  const isAvailable = (name) => available.has(name) || structure.byPosition.some((prefix) => name.startsWith(prefix)); // one for each position, not listed
  let waiting = [];
  const fetchWaiting = () => {
    const sections = waiting;
    waiting = [];
    const { data, choice } = shown;
    const arrived = oncePerFrame(() => choice === shown.choice && choice.update());
    busy(signal, () => askLines("explore", { ...passFields(), sections }, signal, async ({ section }) => {
      if (!section) return;
      await data.put(section);
      arrived();
    }), () => {});
  };
  return (name) => {
    if (!isAvailable(name) || asked.has(name)) return;
    asked.add(name);
    waiting.push(name);
    if (waiting.length === 1) setTimeout(fetchWaiting);
  };
}

function oncePerFrame(action) {
  let isPlanned = false;
  return () => {
    if (isPlanned) return;
    isPlanned = true;
    requestAnimationFrame(() => { isPlanned = false; action(); });
  };
}

// Some sections of the shown pass or, with other fields, of another one; null if they cannot be had.
export async function fetchSections(sections, fields = {}, signal = running.signal) {
  let data = null, whole = null;
  await busy(signal, () => askLines("explore", { ...passFields(), ...fields, sections }, signal, async ({ structure, section }) => {
    if (structure) data = makeData(structure, () => {});
    else await data.put(section);
  }), () => { whole = data; });
  return whole;
}

// Runs a request; the page shows that it is busy, and the error of one that was not cancelled.
let numRunning = 0;
export async function busy(signal, work, done) {
  document.documentElement.dataset.requests = ++numRunning;
  try {
    await work();
    if (!signal.aborted) done();
  } catch (error) {
    if (!signal.aborted) showProblem(error.message);
  } finally {
    document.documentElement.dataset.requests = --numRunning;
  }
}

export function readUrl() {
  const given = new URLSearchParams(location.hash.slice(1));
  const state = {};
  for (const name of Object.keys(STATE)) {
    if (given.has(name)) state[name] = ENCODED.has(name) ? parsed(given.get(name)) : given.get(name);
  }
  return state;
}

function parsed(text) {
  try {
    const value = JSON.parse(text);
    return Array.isArray(value) ? value.filter((each) => each !== null) : [];
  } catch {
    showProblem("The link is damaged: a part of its state cannot be read.");
    return [];
  }
}

function writeUrl() {
  const values = new URLSearchParams(location.hash.slice(1));
  for (const [name, value] of Object.entries(session.state)) {
    const text = ENCODED.has(name) ? (value.length ? JSON.stringify(value) : "") : value;
    if (text) values.set(name, text);
    else values.delete(name);
  }
  history.replaceState(null, "", `#${values}`);
}
