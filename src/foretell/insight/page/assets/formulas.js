// Formulas in MathML with the numbers of this pass: embedding, attention weight, logit.
import { coreOf, dot, firstKey, groupOf, hasLens, hasOperands, inCore, isKept, isRounded, isVisible, keyVector, queryVector, readLens, scaledScores, softmax, weight, whyMissing } from "./data.js";
import { byId, factList, fill, hint, make, math } from "./dom.js";
import { addressOf, count, four, named, quoted, storedProbability } from "./format.js";

const VECTOR_NUMBERS = 8; // longer vectors show their first and last numbers
const VECTOR_ENDS = [3, 2];

const node = (tag, ...children) => math(tag, {}, ...children);
const row = (...parts) => node("mrow", ...parts.map((part) => (typeof part === "string" ? operator(part) : part)));
const symbol = (name) => { const element = node("mi", name); if (name.length > 1) element.setAttribute("mathvariant", "normal"); return element; };
const number = (value, address) => math("mn", { "data-address": address }, value === -Infinity ? "−∞" : four(value));
const whole = (value) => node("mn", String(value));
const words = (text) => node("mtext", text);
const operator = (sign) => node("mo", sign);
const fraction = (over, under) => node("mfrac", over, under);
const root = (inside) => node("msqrt", inside);
const below = (base, index) => node("msub", base, index);
const above = (base, power) => node("msup", base, power);
const group = (inside) => row("(", inside, ")");
const signed = (value, address) => (value < 0 ? group(number(value, address)) : number(value, address));
// The addresses of the numbers of a vector, by their place in it.
const addressesOf = (name, ...index) => (i) => addressOf(name, ...index, i);

function vector(values, address) {
  const all = values.map((value, i) => () => number(value, address(i))), [first, last] = VECTOR_ENDS;
  const shown = (all.length <= VECTOR_NUMBERS ? all : [...all.slice(0, first), () => operator("…"), ...all.slice(-last)]).map((show) => show());
  return row("[", ...shown.flatMap((part, i) => (i ? [spaced(), part] : [part])), "]");
}

// a·b written out: every product if there are few, else the first and the last.
function products(a, b, addressOfA, addressOfB) {
  const product = (i) => row(signed(a[i], addressOfA(i)), "·", signed(b[i], addressOfB(i)));
  const shown = a.length <= 3 ? a.map((_, i) => product(i)) : [product(0), product(1), operator("…"), product(a.length - 1)];
  return row(...shown.flatMap((part, i) => (i ? ["+", part] : [part])));
}

const spaced = () => math("mspace", { width: "0.7em" });

// One formula; on a narrow screen it continues on the next line, before a relation or a sum.
function formula(...parts) {
  const segments = [[]];
  parts.forEach((part, i) => {
    const breaks = part === "+" || (part === "=" && parts.indexOf("=") < i);
    if (breaks) segments.push([]);
    segments.at(-1).push(part);
  });
  return make("div", { class: "equation" }, ...segments.map(segment));
}

function segment(parts) {
  const whole = math("math", { display: "block" }, row(...parts));
  if (parts[0] === "+") whole.querySelector("mo").setAttribute("form", "infix"); // with the spaces of a sum
  return whole;
}

// The embedding of the chosen token.
export function showEmbedding(data, choice) {
  choice.on(["token", "data"], () => fill(byId("embedding"), embedding(data, choice)));
}

// The formulas of the chosen pair and of the logit after the chosen token.
export function showFormulas(data, choice) {
  const show = () => fill(byId("formulas"), pair(data, choice), logit(data, choice));
  choice.on(["token", "key", "layer", "head"], show);
}

const card = (title, ...parts) => make("div", { class: "card formula" }, make("h3", {}, title), ...parts.map((part) => (typeof part === "string" ? hint(part)
  : part.className === "equation" ? make("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Formula" }, part) : part)));

function embedding(data, { token }) {
  const title = `The embedding of ${named(data, token)}`;
  if (!data.get("embed.sum")) return card(title, whyMissing(data));
  const sum = data.get("embed.sum").vector(token), ofSum = addressesOf(data.places[0].name, token);
  const x = below(symbol("x"), whole(token));
  if (!data.all("embed.words", "embed.positions")) {
    const why = data.position === "rotary" ? "No position is added: queries and keys are rotated by it later." : "This model has no position information.";
    return card(title, formula(x, "=", words(`word ${quoted(data.tokens[token].text)}`), "=", vector(sum, ofSum)), why);
  }
  return card(title,
    formula(x, "=", words(`word ${quoted(data.tokens[token].text)}`), "+", words(`position ${token}`)),
    formula("=", vector(data.get("embed.words").vector(token), addressesOf("embed.token", token)), "+", vector(data.get("embed.positions").vector(token), addressesOf("embed.position", token))),
    formula("=", vector(sum, ofSum)));
}

function pair(data, choice) {
  const { layer, head, token, key } = choice;
  const title = `The attention weight of ${named(data, token)} on ${named(data, key)} in layer ${layer}, head ${head}`;
  const recorded = weight(data, layer, head, token, key);
  const name = below(symbol("a"), row(whole(token), ",", whole(key)));
  if (!isVisible(data, layer, token, key)) {
    const why = key > token ? "the key comes later, and a token only attends to itself and earlier tokens" : `the key is outside this layer’s window of ${data.windows[layer]}`;
    return card(title, formula(below(symbol("s"), row(whole(token), ",", whole(key))), "=", number(-Infinity), ",", name, "=", above(symbol("e"), number(-Infinity)), "=", whole(0)), `Hidden: ${why}.`);
  }
  if (!isKept(data, token)) return card(title, whyMissing(data));
  if (!hasOperands(data, layer)) return card(title, formula(name, "=", number(recorded, inCore(data, layer, "weights", head, token, key))), data.complete ? "Queries and keys of this layer are not in this page, so only the recorded weight is shown." : whyMissing(data));
  return card(title, ...scoreSteps(data, choice), ...softmaxSteps(data, choice, name, recorded));
}

function scoreSteps(data, { layer, head, token, key }) {
  const [ofScore, ofScaled] = ["scores", "scaled"].map((stage) => inCore(data, layer, stage, head, token, key)), core = coreOf(data, layer);
  const [ofQuery, ofKey] = [addressesOf(`${core}.query`, head, token), addressesOf(`${core}.key`, groupOf(data, head), key)];
  const query = queryVector(data, layer, head, token), own = keyVector(data, layer, head, key);
  const E = query.length, product = dot(query, own);
  const score = below(symbol("s"), row(whole(token), ",", whole(key)));
  return [
    "The attention score is the product of query and key. Divided by the root of the head’s width E, it is the scaled attention score s. The softmax turns the scaled scores of a row into weights a.",
    formula(below(symbol("q"), whole(token)), "=", vector(query, ofQuery)),
    formula(below(symbol("k"), whole(key)), "=", vector(own, ofKey)),
    formula(score, "=", fraction(row(below(symbol("q"), whole(token)), "·", below(symbol("k"), whole(key))), root(symbol("E"))), "=",
      fraction(products(query, own, ofQuery, ofKey), root(whole(E))), "=", fraction(number(product, ofScore), number(Math.sqrt(E))), "=", number(product / Math.sqrt(E), ofScaled)),
  ];
}

function softmaxSteps(data, { layer, head, token, key }, name, recorded) {
  const first = firstKey(data, layer, token);
  const all = scaledScores(data, layer, head, token);
  const { powers, total, largest, shares } = softmax(all);
  const address = (stage, ...at) => inCore(data, layer, stage, head, token, ...at), ofLargest = address("scaled", first + all.indexOf(largest)), ofWeight = address("weights", key);
  const s = below(symbol("s"), row(whole(token), ",", symbol("j")));
  const sum = row(below(symbol("∑"), symbol("j")), above(symbol("e"), row(s, "−", symbol("m"))));
  return [
    formula(name, "=", fraction(above(symbol("e"), row(below(symbol("s"), row(whole(token), ",", whole(key))), "−", symbol("m"))), sum), "=",
      fraction(above(symbol("e"), row(number(all[key - first], address("scaled", key)), "−", signed(largest, ofLargest))), number(total, address("weights.divisor"))), "=",
      fraction(number(powers[key - first], address("weights.exponentials", key)), number(total, address("weights.divisor"))), "=", number(shares[key - first], ofWeight)),
    factList([["recorded in the pass", four(recorded), { id: "recorded-weight", "data-address": ofWeight }], ["computed here", four(shares[key - first]), { id: "computed-weight", "data-address": ofWeight }]]),
    hint("m = ", make("span", { "data-address": ofLargest }, four(largest)),
      ` is the largest scaled attention score of the row; the sum is over ${count(all.length, "visible key")}.${isRounded(data, layer) ? " The weight is computed from vectors to four decimals, so its last digits may differ." : ""}`),
  ];
}

function logit(data, { token }) {
  const title = `The logit of the most probable token after ${named(data, token)}`;
  if (!hasLens(data, token)) return card(title, whyMissing(data));
  const reading = readLens(data, data.lensPlaces.length - 1, token);
  if (!reading) return card(title, whyMissing(data));
  const [best] = reading.top, ofLogit = addressOf("head", token, best.id);
  const text = quoted(data.vocabulary[best.id]);
  const index = data.get("head.ids")?.whole.indexOf(best.id) ?? -1;
  if (!data.all("final", "head.rows", "head.biases") || index < 0) return card(title, formula(words(`logit ${text}`), "=", number(best.logit, ofLogit)), whyMissing(data));
  const h = data.get("final").vector(token), w = data.get("head.rows").vector(index), bias = data.get("head.biases").at(index);
  const ends = bias ? ["+", signed(bias, addressOf("head.bias", best.id))] : [], [ofH, ofW] = [addressesOf(data.places.at(-1).name, token), addressesOf("head.weight", best.id)];
  return card(title,
    formula(symbol("h"), "=", vector(h, ofH)),
    formula(below(symbol("w"), words(text)), "=", vector(w, ofW)),
    formula(words(`logit ${text}`), "=", symbol("h"), "·", below(symbol("w"), words(text)), ...(bias ? ["+", symbol("b")] : []), "=", products(h, w, ofH, ofW), ...ends, "=", number(dot(h, w) + bias, ofLogit)),
    factList([["recorded in the pass", four(best.logit), { "data-address": ofLogit }],
      ["probability, by softmax over the vocabulary", storedProbability(best.probability), { "data-address": addressOf("probabilities", token, best.id) }]]),
    "h is the stream after the last layer and norm; w is the token’s row of the head.");
}
