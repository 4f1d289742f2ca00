// The labels or the number that a tuned model predicts, and what words and parts contribute to it.
import { css, inkOnSign, onTheme, signColor } from "./colors.js";
import { contributionTables, makeComparison } from "./contributions.js";
import { softmax, whyMissing } from "./data.js";
import { byId, caption, fill, make } from "./dom.js";
import { addressOf, four, probability, quoted, visible } from "./format.js";
import { barTable } from "./next.js";
import { signedBar } from "./terms.js";

const SHOWN = 10; // labels
const MEAN = -1; // the id of the mean of all labels, and the index of its contributions

export const isNumber = (data) => data.outcomes?.names.length === 1;

// What a pass predicts: {noun, names, shares}, labels of a tuned model or else tokens; undefined while it is being read.
export function predictionOf(data) {
  const hasLabels = data.outcomes && !isNumber(data), logits = data.get(hasLabels ? "outcomes.logits" : "logits");
  return logits && { noun: hasLabels ? "Label" : "Token", names: hasLabels ? data.outcomes.names : data.vocabulary, ...softmax(Float64Array.from(logits.whole)) };
}

export function showOutcome(data, choice) {
  if (!data.outcomes) return;
  const { names, readsMean, constant, remark } = data.outcomes, comparison = makeComparison("outcome", true);
  byId("outcome-title").textContent = isNumber(data) ? "The number" : "The label";
  byId("outcome-lead").textContent = `The task’s head, a linear layer, reads ${readsMean ? "the mean over all tokens of the stream" : "the stream at the last token"} after the last norm. `
    + (isNumber(data) ? "Its output is the number, on the scale of the training examples." : `It has one logit for each of the ${names.length} labels; their softmax are the probabilities.`) + (remark ? ` ${remark}` : "");
  const show = () => {
    const [parts, words, stored, tokens] = ["contributions.parts", "outcomes.words", "outcomes.parts", "outcomes.tokens"].map((name) => data.get(name));
    showPrediction(data);
    if (!parts || !words || !stored || !tokens) return fill(byId("outcome-contributions"), make("p", { class: "hint" }, whyMissing(data)));
    const rows = Array.from({ length: stored.shape[1] }, (_, k) => {
      const [id, logit, ...shares] = stored.vector(0, k);
      return { id, logit, parts: shares.slice(0, parts.value.length), tokens: data.tokens.map((_, position) => tokens.at(position, k)), constant: id === MEAN ? 0 : constant,
        words: id === MEAN ? "the mean of all labels" : isNumber(data) ? names[id] : quoted(names[id]) };
    });
    const own = comparison.difference(rows, ["task_head.contributions"], (id) => (id === MEAN ? null : addressOf("task_head", id)));
    const ofStream = parts.value.filter(({ name }) => name !== "head.bias"); // the task's head has no bias
    const [sums, heads] = contributionTables(data, choice, "outcome", ofStream, own, isNumber(data) ? "number" : "logit");
    fill(byId("outcome-contributions"), ...(rows.length > 1 ? [comparison.selects(rows, show)] : []),
      make("div", { class: "columns" }, make("div", {}, wordPart(data, choice, own, words.whole), heads), sums));
  };
  choice.listen((changed) => ["token", "layer", "head", "data"].some((name) => changed.has(name)) && show());
  onTheme(show);
}

function showPrediction(data) {
  const logits = data.get("outcomes.logits");
  if (!logits) return fill(byId("outcome"), make("p", { class: "hint" }, whyMissing(data)));
  if (isNumber(data)) return fill(byId("outcome"), make("p", { class: "result", id: "outcome-number", "data-address": addressOf("task_head", 0) }, four(logits.whole[0])));
  const { names, shares } = predictionOf(data);
  const order = Array.from(names.keys()).sort((a, b) => shares[b] - shares[a]), rows = order.slice(0, SHOWN).map((id) => ({ id, text: names[id], probability: shares[id], address: addressOf("task_head.probabilities", id) }));
  const title = names.length > SHOWN ? `The ${SHOWN} most probable of ${names.length} labels` : "The labels";
  fill(byId("outcome"), make("p", { class: "result" }, visible(names[order[0]])), barTable(title, rows, probability, { noun: "Label" }));
}

// The words of the text, each with the sum of what its tokens contribute; a token around the text stands for itself.
function wordsOf(data, own, owners) {
  const words = new Map();
  data.tokens.forEach(({ text }, position) => {
    const owner = owners[position] ?? -1, key = owner < 0 ? `token ${position}` : owner;
    const word = words.get(key) ?? { text: "", first: position, last: position, value: 0 };
    words.set(key, { ...word, text: word.text + text, last: position, value: word.value + own.tokens[position] });
  });
  return [...words.values()];
}

function wordPart(data, choice, own, owners) {
  const words = wordsOf(data, own, owners), largest = Math.max(...words.map(({ value }) => Math.abs(value))) || 1;
  const color = (value) => `background:${css(signColor(value / largest))};color:${inkOnSign(value / largest)}`;
  const isChosen = ({ first, last }) => first <= choice.token && choice.token <= last;
  const chip = (word) => make("button", { type: "button", class: "token", style: color(word.value), title: four(word.value), "aria-pressed": isChosen(word), onclick: () => choice.set({ token: word.last }) }, make("bdi", {}, visible(word.text)));
  const line = ({ text, value }) => make("tr", {}, make("th", { scope: "row" }, make("bdi", { class: "piece" }, visible(text))), make("td", { class: "number" }, four(value)), signedBar(value / largest));
  const total = words.reduce((sum, { value }) => sum + value, 0);
  const sorted = [...words].sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  const text = "What each word added, directly: what the heads read at its tokens, and what embedding and feed-forward layers added there. Blue raises, orange lowers. It is not the effect of leaving the word out.";
  return make("div", {}, make("div", { class: "tokens", id: "outcome-words" }, ...words.map(chip)),
    make("div", { class: "scroll limited", tabindex: 0, role: "region", "aria-label": "Contributions of words" },
      make("table", { class: "bars signed", id: "outcome-word-table" }, caption(text),
        make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Word"), make("th", { scope: "col", class: "number" }, "Contribution"), make("td", { "aria-hidden": "true" }))),
        make("tbody", {}, ...sorted.map(line), make("tr", { class: "total" }, make("th", { scope: "row" }, "Sum"), make("td", { class: "number" }, four(total)), make("td", {}))))));
}
