// The one choice that all parts of the page share: token (the query), key, layer, head; and what the pointer is over.
import { strongest } from "page/weights.js";

export function makeChoice(data) {
  const listeners = [];
  const limits = { token: data.last, key: data.last, layer: data.shape.layers - 1, head: data.shape.heads - 1 };
  const choice = { token: data.last, key: 0, layer: 0, head: 0, under: null };
  choice.key = strongest(data, 0, 0, data.last);

  choice.listen = (listener) => listeners.push(listener);
  choice.announce = (changed = new Set(["token", "key", "layer", "head", "under"])) => {
    for (const listener of listeners) listener(changed);
  };
  // Another token, layer or head without a key of its own takes the key that is looked at most.
  choice.set = (values) => {
    const changed = new Set();
    for (const [name, value] of Object.entries(values)) {
      const held = Math.min(limits[name], Math.max(0, Math.trunc(value)));
      if (Number.isFinite(held) && held !== choice[name]) { choice[name] = held; changed.add(name); }
    }
    if (changed.size && values.key === undefined) {
      choice.key = strongest(data, choice.layer, choice.head, choice.token);
      changed.add("key");
    }
    if (changed.size) choice.announce(changed);
  };
  // What the pointer is over, {token, key}; null when it has gone.
  choice.point = (under) => {
    if (under?.token === choice.under?.token && under?.key === choice.under?.key) return;
    choice.under = under;
    choice.announce(new Set(["under"]));
  };
  choice.shownToken = () => choice.under?.token ?? choice.token;
  choice.shownKey = () => (choice.under ? choice.under.key ?? null : choice.key);
  return choice;
}
