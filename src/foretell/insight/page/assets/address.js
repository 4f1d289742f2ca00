// The page's address keeps the choice, so that a link leads to the same place.
const NAMES = ["token", "key", "layer", "head"];

export function followAddress(choice) {
  read(choice);
  window.addEventListener("hashchange", () => read(choice));
  choice.listen((changed) => {
    if (NAMES.some((name) => changed.has(name))) write(choice);
  });
}

function read(choice) {
  const asked = new URLSearchParams(location.hash.slice(1));
  const values = {};
  for (const name of NAMES) if (/^\d+$/.test(asked.get(name) ?? "")) values[name] = Number(asked.get(name));
  choice.set(values);
}

function write(choice) {
  const values = new URLSearchParams(NAMES.map((name) => [name, choice[name]]));
  history.replaceState(null, "", `#${values}`);
}
