// What the model expects after the chosen token, and how likely the token was that really follows.
import { at, fill, make } from "page/dom.js";
import { barTable } from "page/bars.js";
import { count, four, named, quoted } from "page/format.js";
import { hasLens, readLens } from "page/lens_values.js";

export function showHere(data, choice) {
  const show = () => {
    const token = choice.token;
    at("here-title").textContent = `After ${named(data, token)}`;
    if (!hasLens(data, token)) return fill(at("here"), make("p", { class: "hint" }, "What the model expects here is not in this page; it is kept for the last positions."));
    const { top, following, rank } = readLens(data, data.lensPlaces.length - 1, token);
    const real = token < data.last ? data.tokens[token + 1] : null;
    const rows = top.map(({ id, probability }) => ({ text: data.vocabulary[id], probability, mark: real?.id === id ? "follows" : "" }));
    const words = real
      ? `Really follows: ${quoted(real.text)}, expected with ${four(following)}, ${rank === 0 ? "the likeliest" : `number ${(rank + 1).toLocaleString("en")} in line`}.`
      : "It is the last token; nothing is known to follow it.";
    fill(at("here"), make("p", { class: "summary" }, words), barTable(`The ${count(rows.length, "likeliest token")}, unfiltered`, rows));
  };
  choice.listen((changed) => changed.has("token") && show());
}
