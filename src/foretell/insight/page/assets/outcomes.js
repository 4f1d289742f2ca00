// The labels or the number that a tuned model predicts, and what words and parts contribute to it.
import { css, inkOnSign, onTheme, signColor } from "./colors.js";
import { contributionTables, makeComparison } from "./contributions.js";
import { argMax, softmax, whyMissing } from "./data.js";
import { barHeading, button, byId, caption, fill, headings, hint, make, numberCell, region, tableHead } from "./dom.js";
import { addressOf, four, opens, probability, quoted, visible } from "./format.js";
import { barTable } from "./next.js";
import { signedBar } from "./terms.js";

const SHOWN = 10; // labels
const MEAN = -1; // the id of the mean of all labels, whose numbers have the index after the labels

const ALL = -1; // the sum of all parts

const NOUNS = { choice: "Answer", tags: "Tag" };

export const isNumber = (data) => data.outcomes?.names.length === 1;
const hasTags = (data) => data.outcomes?.kind === "tags";

// What a pass predicts: {noun, names, shares, address(id)}, labels of a tuned model or else tokens; undefined while it is
// being read. position: of a tag, by default the last token.
export function predictionOf(data, position = data.last) {
  if (!data.outcomes || isNumber(data)) {
    const logits = data.get("logits");
    return logits && { noun: "Token", names: data.vocabulary, address: (id) => addressOf("probabilities", data.last, id), ...softmax(Float64Array.from(logits.whole)) };
  }
  const logits = data.get("outcomes.logits"), { kind, names } = data.outcomes, first = hasTags(data) ? [position] : [];
  return logits && { noun: NOUNS[kind] ?? "Label", names, address: (id) => addressOf("task_head.probabilities", ...first, id), ...softmax(Float64Array.from(hasTags(data) ? logits.vector(position) : logits.whole)) };
}

export function showOutcome(data, choice) {
  if (!data.outcomes) return;
  const { names, kind } = data.outcomes, labels = kind === "tags" ? "tags" : "labels", comparison = makeComparison("outcome", true);
  byId("outcome-title").textContent = isNumber(data) ? "The number" : { choice: "The answer", tags: "The tags" }[kind] ?? "The label";
  byId("outcome-lead").textContent = lead(data);
  const show = () => {
    const words = data.get("outcomes.words"), at = hasTags(data) ? lastOfWord(words?.whole ?? [], choice.token) : data.last, of = hasTags(data) ? `.${at}` : "";
    const [parts, stored, tokens] = ["contributions.parts", `outcomes.parts${of}`, `outcomes.tokens${of}`].map((name) => data.get(name));
    const ofWord = hasTags(data) && quoted(wordsOf(data, { tokens: data.tokens.map(() => 0) }, words?.whole ?? []).find(({ last }) => last === at)?.text.trim() ?? "");
    if (hasTags(data)) showTags(data, choice, words?.whole, at, ofWord);
    else showPrediction(data, at);
    if (hasTags(data)) byId("outcome-contributions-title").textContent = `Contributions to the tag of ${ofWord}`;
    if (!parts || !words || !stored || !tokens) return fill(byId("outcome-contributions"), hint(whyMissing(data)));
    const rows = Array.from({ length: stored.shape[1] }, (_, k) => {
      const [id, logit, constant, ...shares] = stored.vector(0, k);
      return { id: id === MEAN ? names.length : id, logit, constant, parts: shares.slice(0, parts.value.length), tokens: data.tokens.map((_, position) => tokens.at(position, k)),
        title: id === MEAN ? `Mean of all ${labels}` : undefined, words: id === MEAN ? `the mean of all ${labels}` : isNumber(data) ? names[id] : quoted(names[id]) };
    });
    const own = withConstants(data, comparison.difference(rows, ["task_head.contributions", ...(hasTags(data) ? [at] : [])], "task_head"));
    const ofStream = parts.value.filter(({ name }) => name !== "head.bias"); // the task's head has no bias
    const [sums, heads] = contributionTables(data, choice, "outcome", ofStream, own, isNumber(data) ? "number" : "logit");
    fill(byId("outcome-contributions"), ...(rows.length > 1 ? [comparison.selects(rows, show)] : []),
      make("div", { class: "columns" }, make("div", {}, wordPart(data, choice, own, words.whole), heads), sums));
  };
  choice.on(["token", "layer", "head", "data"], show);
  onTheme(show);
}

// A row with what is not of the parts: the output for the texts in the other order, whose pass opens, and a mean.
function withConstants({ outcomes: { kind, constant }, otherOrder }, own) {
  const whole = own.addressIn(".whole"), orders = kind === "orders" ? [["Texts in the other order", own.constant - constant, otherOrder && opens({ address: whole, ...otherOrder })]] : [];
  return { ...own, whole, constants: [...orders, ...(constant ? [["Mean of the training examples", constant, "task_head.constant"]] : [])] };
}

function lead(data) {
  const { names, kind, readsMean } = data.outcomes, where = kind === "tags" ? "the stream at the last token of each word" : readsMean ? "the mean over all tokens of the stream" : "the stream at the last token";
  const outputs = isNumber(data) ? "Its output is the number, on the scale of the training examples."
    : kind === "choice" ? `It has one logit for each answer, from a pass over the question and that answer; their softmax are the probabilities. The page shows the pass over ${quoted(names[data.outcomes.first])}.`
    : `It has one logit for each of the ${names.length} ${kind === "tags" ? "tags" : "labels"}; their softmax are the probabilities.`;
  const orders = kind === "orders" ? "It reads the texts in both orders and adds up what it computes; the page shows the pass over the given order." : "";
  return [`The task’s head, a linear layer, reads ${where} after the last norm.`, outputs, orders].filter((sentence) => sentence).join(" ");
}

function showPrediction(data, at) {
  const logits = data.get("outcomes.logits");
  if (!logits) return fill(byId("outcome"), hint(whyMissing(data)));
  if (isNumber(data)) return fill(byId("outcome"), make("p", { class: "result", id: "outcome-number", "data-address": addressOf("task_head", 0) }, four(logits.whole[0])));
  fill(byId("outcome"), ...distributionOf(data, at));
}

// The most probable label, and all with their probabilities.
function distributionOf(data, at) {
  const { noun, names, shares, address } = predictionOf(data, at);
  const order = Array.from(names.keys()).sort((a, b) => shares[b] - shares[a]), rows = order.slice(0, SHOWN).map((id) => ({ id, text: names[id], probability: shares[id], address: address(id) }));
  const title = names.length > SHOWN ? `The ${SHOWN} most probable of ${names.length} ${noun.toLowerCase()}s` : `The ${noun.toLowerCase()}s`;
  return [make("p", { class: "result" }, visible(names[order[0]])), ...(data.showAnswer ? [answerSelect(data)] : []), barTable(title, rows, probability, { noun })];
}

// The answer whose pass the page shows; data.showAnswer: of a live page, shows the pass over another one.
function answerSelect({ outcomes: { names, first }, showAnswer }) {
  const options = names.map((name, i) => make("option", { value: i, selected: i === first }, visible(name)));
  return make("p", { class: "field wide" }, make("label", { for: "answer" }, "The page shows the pass over"),
    make("select", { id: "answer", onchange: (event) => showAnswer(Number(event.target.value)) }, ...options));
}

// --- tags

// The last token of the word that a token belongs to.
function lastOfWord(owners, token) {
  let last = token;
  while (last + 1 < owners.length && owners[last + 1] === owners[token]) last++;
  return last;
}

// Every word with its tag, colored by it; a table of the same, and the distribution of the chosen word's tag.
function showTags(data, choice, owners, at, ofWord) {
  const logits = data.get("outcomes.logits"), { names } = data.outcomes;
  if (!logits || !owners) return fill(byId("outcome"), hint(whyMissing(data)));
  const words = wordsOf(data, { tokens: data.tokens.map(() => 0) }, owners).filter(({ first }) => owners[first] >= 0).map((word) => {
    const { shares, address } = predictionOf(data, word.last), best = argMax(shares);
    return { ...word, text: word.text.trim(), best, share: shares[best], address: address(best) };
  });
  const chip = (word) => make("button", { type: "button", class: "token tagged", style: `background:${tagColor(word.best, names)}`, "aria-pressed": word.last === at, onclick: () => choice.set({ token: word.last }) },
    make("bdi", {}, visible(word.text)), make("small", {}, visible(names[word.best])));
  const line = (word) => make("tr", { class: word.last === at ? "chosen" : "" }, make("th", { scope: "row" }, make("bdi", { class: "piece" }, visible(word.text))),
    make("td", {}, visible(names[word.best])), numberCell(probability(word.share), word.address));
  fill(byId("outcome"), make("div", { class: "tokens", id: "outcome-tags" }, ...words.map(chip)), make("div", { class: "columns" },
    region("The tags of all words", make("table", { id: "outcome-tag-table" }, caption("Every word with its most probable tag"),
      tableHead(...headings(["Word", "Tag", "Probability"], 2)), make("tbody", {}, ...words.map(line))), "limited"),
    make("div", {}, make("h4", {}, `The tag of ${ofWord}`), ...distributionOf(data, at))));
}

// One color for each tag; O, outside of spans, has none, and the parts of a span share one.
function tagColor(tag, names) {
  const kinds = [...new Set(names.map((name) => name.replace(/^[BIES]-/, "")))].filter((kind) => kind !== "O"), index = kinds.indexOf(names[tag].replace(/^[BIES]-/, ""));
  return index < 0 ? "transparent" : `hsl(${Math.round((360 * index) / kinds.length + 210) % 360} 55% 50% / 0.28)`;
}

// --- words

// The words of the text, each with the sum of what its tokens contribute; a token around the text stands for itself.
function wordsOf(data, own, owners) {
  const words = new Map();
  data.tokens.forEach(({ text }, position) => {
    const owner = owners[position] ?? -1, key = owner < 0 ? `token ${position}` : owner;
    const word = words.get(key) ?? { text: "", first: position, last: position, value: 0, address: owner < 0 ? own.addressIn?.(".token", ALL, position) : own.addressIn?.(".word", owner) };
    words.set(key, { ...word, text: word.text + text, last: position, value: word.value + own.tokens[position] });
  });
  return [...words.values()];
}

function wordPart(data, choice, own, owners) {
  const words = wordsOf(data, own, owners), largest = Math.max(...words.map(({ value }) => Math.abs(value))) || 1;
  const color = (value) => `background:${css(signColor(value / largest))};color:${inkOnSign(value / largest)}`;
  const isChosen = ({ first, last }) => first <= choice.token && choice.token <= last;
  const chip = (word) => button(make("bdi", {}, visible(word.text)), () => choice.set({ token: word.last }), { class: "token", style: color(word.value), title: four(word.value), "aria-pressed": isChosen(word) });
  const line = ({ text, value, address }) => make("tr", {}, make("th", { scope: "row" }, make("bdi", { class: "piece" }, visible(text))), numberCell(four(value), address), signedBar(value / largest));
  const total = words.reduce((sum, { value }) => sum + value, 0);
  const sorted = [...words].sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  const text = "What each word added, directly: what the heads read at its tokens, and what embedding and feed-forward layers added there. Blue raises, orange lowers. It is not the effect of leaving the word out.";
  return make("div", {}, make("div", { class: "tokens", id: "outcome-words" }, ...words.map(chip)),
    region("Contributions of words",
      make("table", { class: "bars signed", id: "outcome-word-table" }, caption(text),
        tableHead(...headings(["Word", "Contribution"]), barHeading()),
        make("tbody", {}, ...sorted.map(line), make("tr", { class: "total" }, make("th", { scope: "row" }, "Sum"), numberCell(four(total), own.address(ALL)), make("td", {})))), "limited"));
}
