// The formulas of the chosen token and of the chosen pair, with the numbers of this pass in them.
import { at, fill, make } from "page/dom.js";
import { whyMissing } from "page/data.js";
import { four, named, quoted } from "page/format.js";
import { hasLens, readLens } from "page/lens_values.js";
import { above, below, formula, fraction, group, number, products, root, row, symbol, vector, whole, words } from "page/mathml.js";
import { dot, hasOperands, keyVector, queryVector, scores, softmax } from "page/operands.js";
import { firstKey, isKept, isVisible, weight } from "page/weights.js";

export function showFormulas(data, choice) {
  const show = () => fill(at("formulas"), embedding(data, choice), pair(data, choice), logit(data, choice));
  choice.listen((changed) => ["token", "key", "layer", "head"].some((name) => changed.has(name)) && show());
}

const card = (title, ...parts) => make("div", { class: "card formula" }, make("h3", {}, title), ...parts.map((part) => (typeof part === "string" ? make("p", { class: "hint" }, part)
  : part instanceof MathMLElement ? make("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Formula" }, part) : part)));

function embedding(data, { token }) {
  const title = `The vector of ${named(data, token)} as it enters`;
  if (!data.get("embed.sum")) return card(title, whyMissing(data));
  const sum = data.get("embed.sum").vector(token);
  const x = below(symbol("x"), whole(token));
  if (!data.get("embed.positions")) {
    const why = data.position === "rotary" ? "No position is added: queries and keys are turned by it later." : "This model is told no positions.";
    return card(title, formula(x, "=", words(`word ${quoted(data.tokens[token].text)}`), "=", vector(sum)), why);
  }
  return card(title,
    formula(x, "=", words(`word ${quoted(data.tokens[token].text)}`), "+", words(`position ${token}`)),
    formula("=", vector(data.get("embed.words").vector(token)), "+", vector(data.get("embed.positions").vector(token))),
    formula("=", vector(sum)));
}

function pair(data, choice) {
  const { layer, head, token, key } = choice;
  const title = `How much ${named(data, token)} attends to ${named(data, key)} in layer ${layer}, head ${head}`;
  const recorded = weight(data, layer, head, token, key);
  const name = below(symbol("a"), row(whole(token), ",", whole(key)));
  if (!isVisible(data, layer, token, key)) {
    const why = key > token ? "the key comes later, and a token never sees what follows it" : `the key lies outside this layer’s window of ${data.windows[layer]}`;
    return card(title, formula(below(symbol("s"), row(whole(token), ",", whole(key))), "=", number(-Infinity), ",", name, "=", above(symbol("e"), number(-Infinity)), "=", whole(0)), `Hidden: ${why}.`);
  }
  if (!isKept(data, token)) return card(title, whyMissing(data));
  if (!hasOperands(data, layer)) return card(title, formula(name, "=", number(recorded)), data.complete ? "Queries and keys of this layer are not in this page, so only the recorded weight is shown." : whyMissing(data));
  return card(title, ...scoreSteps(data, choice), ...softmaxSteps(data, choice, name, recorded));
}

function scoreSteps(data, { layer, head, token, key }) {
  const query = queryVector(data, layer, head, token), own = keyVector(data, layer, head, key);
  const E = query.length, product = dot(query, own);
  const score = below(symbol("s"), row(whole(token), ",", whole(key)));
  return [
    formula(below(symbol("q"), whole(token)), "=", vector(query)),
    formula(below(symbol("k"), whole(key)), "=", vector(own)),
    formula(score, "=", fraction(row(below(symbol("q"), whole(token)), "·", below(symbol("k"), whole(key))), root(symbol("E"))), "=",
      fraction(products(query, own), root(whole(E))), "=", fraction(number(product), number(Math.sqrt(E))), "=", number(product / Math.sqrt(E))),
  ];
}

function softmaxSteps(data, { layer, head, token, key }, name, recorded) {
  const first = firstKey(data, layer, token);
  const all = scores(data, layer, head, token);
  const { powers, total, largest, shares } = softmax(all);
  const s = below(symbol("s"), row(whole(token), ",", symbol("j")));
  const sum = row(below(symbol("∑"), symbol("j")), above(symbol("e"), row(s, "−", symbol("m"))));
  return [
    formula(name, "=", fraction(above(symbol("e"), row(below(symbol("s"), row(whole(token), ",", whole(key))), "−", symbol("m"))), sum), "=",
      fraction(above(symbol("e"), row(number(all[key - first]), "−", largest < 0 ? group(number(largest)) : number(largest))), number(total)), "=",
      fraction(number(powers[key - first]), number(total)), "=", number(shares[key - first])),
    make("dl", { class: "beside" },
      make("div", {}, make("dt", {}, "recorded in the pass"), make("dd", { id: "recorded-weight" }, four(recorded))),
      make("div", {}, make("dt", {}, "computed here"), make("dd", { id: "computed-weight" }, four(shares[key - first])))),
    `m = ${four(largest)} is the row’s largest score; the sum goes over the ${all.length === 1 ? "one key" : `${all.length} keys`} that may be seen. It is computed from vectors to four decimals, so its last digits may differ.`,
  ];
}

function logit(data, { token }) {
  const title = `The score of the likeliest token after ${named(data, token)}`;
  if (!hasLens(data, token)) return card(title, whyMissing(data));
  const [best] = readLens(data, data.lensPlaces.length - 1, token).top;
  const text = quoted(data.vocabulary[best.id]);
  const place = data.rowIds.indexOf(best.id);
  if (!data.get("final") || place < 0) return card(title, formula(words(`logit ${text}`), "=", number(best.logit)), whyMissing(data));
  const h = data.get("final").vector(token), w = data.get("head.rows").vector(place), bias = data.get("head.biases").at(place);
  const ends = bias ? ["+", bias < 0 ? group(number(bias)) : number(bias)] : [];
  return card(title,
    formula(symbol("h"), "=", vector(h)),
    formula(below(symbol("w"), words(text)), "=", vector(w)),
    formula(words(`logit ${text}`), "=", symbol("h"), "·", below(symbol("w"), words(text)), ...(bias ? ["+", symbol("b")] : []), "=", products(h, w), ...ends, "=", number(dot(h, w) + bias)),
    make("dl", { class: "beside" },
      make("div", {}, make("dt", {}, "recorded in the pass"), make("dd", {}, four(best.logit))),
      make("div", {}, make("dt", {}, "its probability, by softmax over the vocabulary"), make("dd", {}, four(best.probability)))),
    "h is the stream after the last layer and norm; w is the token’s row of the head.");
}
