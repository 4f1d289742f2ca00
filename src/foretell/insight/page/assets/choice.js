// The choice shared by all parts of the page: token (the query), key, layer, head; and what is under the pointer.
import { strongest, strongestSource } from "./data.js";
import { byId } from "./dom.js";
import { visible } from "./format.js";

export function makeChoice(data) {
  const listeners = [];
  const limits = { token: data.last, key: data.last, sourceToken: data.memory ? data.memory.tokens.length - 1 : 0, layer: data.shape.layers - 1, head: data.shape.heads - 1 };
  const choice = { token: data.last, key: 0, sourceToken: 0, layer: 0, head: 0, under: null };
  const isGiven = choice.isGiven = { key: false, sourceToken: false }; // else it has the largest weight
  const largest = { key: strongest, sourceToken: strongestSource };
  const chooseLargest = () => {
    for (const [name, find] of Object.entries(largest)) if (!isGiven[name]) choice[name] = find(data, choice.layer, choice.head, choice.token);
  };
  chooseLargest();

  choice.listen = (listener) => listeners.push(listener);
  choice.on = (names, show) => choice.listen((changed) => names.some((name) => changed.has(name)) && show());
  choice.announce = (changed = new Set(EVERYTHING)) => {
    for (const listener of listeners) listener(changed);
  };
  // Call when sections have arrived.
  choice.update = () => {
    chooseLargest();
    choice.announce();
  };
  // Show one more part.
  choice.show = (show) => {
    const before = listeners.length;
    show(data, choice);
    for (const listener of listeners.slice(before)) listener(new Set(EVERYTHING));
  };
  // A new token, layer or head without a key selects the key with the largest weight.
  choice.set = (values) => {
    const changed = new Set();
    for (const [name, value] of Object.entries(values)) {
      const held = Math.min(limits[name], Math.max(0, Math.trunc(value)));
      if (Number.isFinite(held) && held !== choice[name]) { choice[name] = held; changed.add(name); }
    }
    for (const name of Object.keys(largest)) {
      if (["token", "layer", "head", name].some((each) => changed.has(each))) {
        isGiven[name] = values[name] !== undefined;
        changed.add(name);
      }
    }
    chooseLargest();
    if (changed.size) choice.announce(changed);
  };
  // What is under the pointer, {token, key}, or null.
  choice.point = (under) => {
    if (under?.token === choice.under?.token && under?.key === choice.under?.key) return;
    choice.under = under;
    choice.announce(new Set(["under"]));
  };
  choice.shownToken = () => choice.under?.token ?? choice.token;
  choice.shownKey = () => (choice.under ? choice.under.key ?? null : choice.key);
  return choice;
}

const EVERYTHING = ["token", "key", "sourceToken", "layer", "head", "under", "data"];

// The URL keeps the choice, so that a link opens the page with the same choice.
const NAMES = ["token", "key", "layer", "head", "sourceToken"];

export function followUrl(data, choice) {
  readChoice(data, choice);
  const names = NAMES.filter((name) => data.memory || name !== "sourceToken");
  choice.listen((changed) => {
    if (changed.has("data") ? isBehind(choice) : names.some((name) => changed.has(name))) write(choice, names);
  });
}

// The URL has a key that was written before the weights arrived, by which the key is chosen.
function isBehind(choice) {
  const given = new URLSearchParams(location.hash.slice(1));
  return Object.entries(choice.isGiven).some(([name, isGiven]) => !isGiven && given.has(name) && given.get(name) !== String(choice[name]));
}

// What the URL lacks is as in a page that opens, of which a file may have a choice.
export function readChoice(data, choice) {
  const given = new URLSearchParams(location.hash.slice(1));
  const values = { token: data.last, layer: 0, head: 0, ...data.choice };
  for (const name of NAMES) if (/^\d+$/.test(given.get(name) ?? "")) values[name] = Number(given.get(name));
  choice.set(values);
  const missing = NAMES.filter((name) => given.has(name) && given.get(name) !== String(choice[name]) && (data.memory || name !== "sourceToken"));
  const list = (value) => missing.map((name) => `${name === "sourceToken" ? "source token" : name} ${value(name)}`).join(", ");
  choice.problem = missing.length ? `The link names ${list((name) => visible(given.get(name)))}, which this pass does not have. The page shows ${list((name) => choice[name])}.` : "";
}

// Calls `follow` when the link changes. A link to a section of the page, as the one that skips to the text, keeps the state.
export function onLink(follow) {
  addEventListener("hashchange", ({ oldURL }) => {
    if (!location.hash || location.hash.includes("=")) return follow();
    const target = byId(location.hash.slice(1));
    history.replaceState(null, "", oldURL);
    if (target) keepInView(target, "auto");
  });
}

// The section that a link names: a field without a value.
export function goToLinked() {
  const name = [...new URLSearchParams(location.hash.slice(1))].find(([id, value]) => !value && byId(id)?.matches("section:not([hidden])"))?.[0];
  if (!name) return;
  history.scrollRestoration = "manual";
  keepInView(byId(name), "instant");
}

let kept = new AbortController();

// Brings an element into view. What arrives above it moves it, so it is brought into view again, for a minute or until the
// reader does something.
export function keepInView(element, behavior) {
  kept.abort();
  kept = new AbortController();
  const { signal } = kept, observer = new ResizeObserver(() => element.scrollIntoView({ behavior }));
  observer.observe(document.body);
  signal.addEventListener("abort", () => observer.disconnect());
  setTimeout(() => { // not at the event that led here
    for (const type of ["wheel", "touchmove", "pointerdown", "keydown"]) addEventListener(type, () => observer.disconnect(), { signal, passive: true });
  });
  setTimeout(() => observer.disconnect(), 60_000); // a slow machine computes the parts above for that long
}

function write(choice, names) {
  const values = new URLSearchParams(location.hash.slice(1));
  for (const name of names) values.set(name, choice[name]);
  history.replaceState(null, "", `#${values}`);
}
