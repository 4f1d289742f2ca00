// The logit lens of the chosen token: the likeliest next tokens after each layer.
import { at, caption, fill, make } from "page/dom.js";
import { inkOn, weightColor } from "page/colors.js";
import { four, quoted, short, visible } from "page/format.js";
import { hasLens, readLens } from "page/lens_values.js";
import { onTheme } from "page/theme.js";

export function showLens(data, choice) {
  const show = () => fill(at("lens"), ...(hasLens(data, choice.token) ? [table(data, choice)] : [make("p", { class: "hint" }, "The lens is kept for the last positions only.")]));
  choice.listen((changed) => (changed.has("token") || changed.has("layer")) && show());
  onTheme(show);
}

function table(data, choice) {
  const real = data.tokens[choice.token + 1];
  const places = data.lensPlaces.map((number) => data.places[number]);
  const cell = ({ id, probability }) => make("td", {
    style: `background:${weightColor(probability)};color:${inkOn(probability)}`, title: `${visible(data.vocabulary[id])}: ${four(probability)}`,
    class: real?.id === id ? "follows" : "",
  }, make("bdi", {}, short(data.vocabulary[id], 10)), make("small", {}, four(probability)));
  const line = (place, number) => {
    const { top, following } = readLens(data, number, choice.token);
    return make("tr", place.layer === choice.layer ? { class: "chosen" } : {},
      make("th", { scope: "row" }, place.label), ...top.map(cell),
      ...(real ? [make("td", { class: "number" }, four(following))] : []));
  };
  const ranks = readLens(data, 0, choice.token).top.map((_, i) => make("th", { scope: "col" }, ["likeliest", "2nd", "3rd"][i] ?? `${i + 1}th`));
  const words = `The stream at ${quoted(data.tokens[choice.token].text)} through the last norm and the head, after each layer.`
    + (real ? ` Underlined: ${quoted(real.text)}, which really follows; its probability is in the last column.` : "");
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Logit lens" },
    make("table", { class: "lens" }, caption(words),
      make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Place"), ...ranks, ...(real ? [make("th", { scope: "col", class: "number" }, "follows")] : []))),
      make("tbody", {}, ...places.map(line))));
}
