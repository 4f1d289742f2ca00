// The choice shared by all parts of the page: token (the query), key, layer, head; and what is under the pointer.
import { strongest } from "./data.js";
import { listen } from "./dom.js";

export function makeChoice(data) {
  const listeners = [];
  const limits = { token: data.last, key: data.last, layer: data.shape.layers - 1, head: data.shape.heads - 1 };
  const choice = { token: data.last, key: 0, layer: 0, head: 0, under: null };
  let isKeyChosen = false; // else it is the strongest one
  const chooseKey = () => { choice.key = strongest(data, choice.layer, choice.head, choice.token); };
  chooseKey();

  choice.listen = (listener) => listeners.push(listener);
  choice.announce = (changed = new Set(EVERYTHING)) => {
    for (const listener of listeners) listener(changed);
  };
  // Call when sections have arrived.
  choice.update = () => {
    if (!isKeyChosen) chooseKey();
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
    if (changed.size) isKeyChosen = values.key !== undefined;
    if (changed.size && !isKeyChosen) {
      chooseKey();
      changed.add("key");
    }
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

const EVERYTHING = ["token", "key", "layer", "head", "under", "data"];

// The URL keeps the choice, so that a link opens the page with the same choice.
const NAMES = ["token", "key", "layer", "head"];

export function followUrl(choice) {
  read(choice);
  listen(window, "hashchange", () => read(choice));
  choice.listen((changed) => {
    if (NAMES.some((name) => changed.has(name))) write(choice);
  });
}

function read(choice) {
  const given = new URLSearchParams(location.hash.slice(1));
  const values = {};
  for (const name of NAMES) if (/^\d+$/.test(given.get(name) ?? "")) values[name] = Number(given.get(name));
  choice.set(values);
}

function write(choice) {
  const values = new URLSearchParams(location.hash.slice(1));
  for (const name of NAMES) values.set(name, choice[name]);
  history.replaceState(null, "", `#${values}`);
}
