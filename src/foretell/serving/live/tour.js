// A tour in ten steps, with the numbers of the shown pass.
import { hasFeedforward } from "../block.js";
import { keepInView } from "../choice.js";
import { argMax, blockOf, dot, firstKey, hasLens, hasOperands, inCore, keyVector, lensAddress, queryVector, readLens, softmax, strongest, weight, weightRow } from "../data.js";
import { button, byId, fill, make } from "../dom.js";
import { addressOf, count, four, named, opensDifference, probability, quoted, storedProbability, value as inDigits } from "../format.js";
import { isNumber, predictionOf } from "../outcomes.js";
import { quantileOf, seriesOf } from "../series.js";

// A sentence with numbers that open: a list of texts and elements.
const sentence = (texts, ...values) => texts.flatMap((text, i) => [text, ...values.slice(i, i + 1)]);
const number = (words, address) => make("span", typeof address === "string" ? { "data-address": address } : address, words);

// Each step: the element that it shows, a title, and two sentences, or lists as of `sentence`; null while their numbers are fetched.
const STEPS = [
  {
    at: "text-section", title: "The text as tokens",
    words: (data, { token }) => [
      `The model reads the text as ${count(data.tokens.length, "token")}, each one of the ${data.shape.vocabulary.toLocaleString("en")} of its vocabulary.`,
      `The chosen token is ${quoted(data.tokens[token].text)}, which has position ${token} and the id ${data.tokens[token].id.toLocaleString("en")} in the vocabulary.`,
    ],
  },
  {
    at: "series", title: "The series and its next value", isIn: (data) => data.hasLevels,
    words: (data) => {
      const series = seriesOf(data), quantile = (share) => number(inDigits(series.quantile(share)), quantileOf(share));
      return series && [
        `The model has read ${count(data.tokens.length, "value")} and gives each of its ${series.levels.length.toLocaleString("en")} bins a probability for the next one.`,
        sentence`Half of the probability is between ${quantile(0.25)} and ${quantile(0.75)}; the median is ${quantile(0.5)}.`,
      ];
    },
  },
  {
    at: "outcome", title: "The prediction", isIn: (data) => data.outcomes,
    words: (data) => {
      const logits = data.get("outcomes.logits"), prediction = logits && predictionOf(data);
      if (!prediction) return null;
      const best = argMax(Array.from(prediction.shares));
      return [
        isNumber(data) ? sentence`The number of this text is ${number(four(logits.whole[0]), addressOf("task_head", 0))}.`
          : sentence`The label of this text is ${quoted(prediction.names[best])}, with probability ${number(probability(prediction.shares[best]), prediction.address(best))}.`,
        "Below it, every word, head and layer has its contribution.",
      ];
    },
  },
  {
    at: "next-section", title: "What comes next",
    words: (data) => {
      const logits = data.get("logits");
      if (!logits) return null;
      const { shares } = softmax(Array.from(logits.whole));
      const [first, second] = Array.from(shares.keys()).sort((a, b) => shares[b] - shares[a]), share = (id) => number(probability(shares[id]), addressOf("probabilities", data.last, id));
      return [
        sentence`After the whole text, the most probable token is ${quoted(data.vocabulary[first])}, with probability ${share(first)}.`,
        sentence`The next one is ${quoted(data.vocabulary[second])} with ${share(second)}, and all others share the rest.`,
      ];
    },
  },
  {
    at: "grid", title: "Attention: all heads of a layer",
    words: (data, { layer, token }) => {
      if (!data.get(`attention.${layer}`)) return null;
      const keys = Array.from({ length: data.shape.heads }, (_, head) => strongest(data, layer, head, token));
      const weights = keys.map((key, head) => weight(data, layer, head, token, key));
      const head = argMax(weights);
      return [
        `Layer ${layer} has ${count(data.shape.heads, "head")}, which compute their attention weights independently.`,
        sentence`The largest weight of ${named(data, token)} is in head ${head}: ${number(four(weights[head]), inCore(data, layer, "weights", head, token, keys[head]))}, to ${named(data, keys[head])}.`,
      ];
    },
  },
  {
    at: "map", title: "Attention: one head",
    words: (data, { layer, head, token }) => {
      if (!data.get(`attention.${layer}`)) return null;
      const row = Array.from(weightRow(data, layer, head, token), (stored) => stored / 10000);
      return [
        `In head ${head} of layer ${layer}, ${named(data, token)} can see ${count(row.length, "token")}, from ${named(data, firstKey(data, layer, token))} to itself; their weights add up to 1.`,
        sentence`It gives ${number(four(weight(data, layer, head, token, token)), inCore(data, layer, "weights", head, token, token))} to itself, and ${row.filter((share) => share > 1 / row.length).length} of the ${row.length} get more than an even share.`,
      ];
    },
  },
  {
    at: "terms", title: "Why this token attends there",
    words: (data, { layer, head, token, key }) => {
      if (!hasOperands(data, layer)) return null;
      const score = dot(queryVector(data, layer, head, token), keyVector(data, layer, head, key)), { headWidth } = data.shape;
      const at = (name, value) => number(four(value), inCore(data, layer, name, head, token, key));
      return [
        sentence`The attention score of ${named(data, token)} and ${named(data, key)} is the dot product of a query and a key of ${headWidth} numbers: ${at("scores", score)}.`,
        sentence`Divided by √${headWidth} it is ${at("scaled", score / Math.sqrt(headWidth))}; after the softmax over all keys, the weight is ${at("weights", weight(data, layer, head, token, key))}.`,
      ];
    },
  },
  {
    at: "neurons", title: "The feed-forward layer", isIn: (data) => hasFeedforward(data) && data.neurons.every((names) => names),
    words: (data, { layer, token }) => {
      const ids = data.get(`neurons.ids.${layer}`), values = data.get(`neurons.values.${layer}`);
      if (!ids || !values) return null;
      const [first, second] = ids.vector(token), length = (k, id) => number(four(values.vector(token, k).at(-1)), addressOf(`${blockOf(data, layer)}.neurons.vector_norm`, token, id));
      return [
        sentence`In layer ${layer}, neuron ${first.toLocaleString("en")} adds the longest vector to the stream of ${named(data, token)}: its norm is ${length(0, first)}.`,
        second === undefined ? "The layer has no other neuron." : sentence`Neuron ${second.toLocaleString("en")} follows with ${length(1, second)}; each neuron reads this token alone.`,
      ];
    },
  },
  {
    at: "sizes", title: "The residual stream",
    words: (data, { token }) => {
      const sizes = data.get("stream.sizes");
      if (!sizes) return null;
      const after = data.places.flatMap(({ layer, name }, i) => (layer === null ? [] : [{ layer, size: sizes.at(i, token), address: addressOf(`${name}.vector_norm`, token) }]));
      const steps = after.slice(1).map(({ size }, i) => size - after[i].size), most = argMax(steps.map(Math.abs));
      const norm = ({ size, address }) => number(four(size), address), addressAt = (i) => ({ address: after[i].address });
      return [
        sentence`The vector of ${named(data, token)} has norm ${norm(after[0])} after the embedding and ${norm(after.at(-1))} after layer ${after.at(-1).layer}.`,
        sentence`Layer ${after[most + 1].layer} changes the norm most, by ${number(four(steps[most]), opensDifference(addressAt(most + 1), addressAt(most)))}.`,
      ];
    },
  },
  {
    at: "lens", title: "The logit lens",
    words: (data, { token }) => {
      if (!hasLens(data, token)) return ["The lens is kept for the last positions only.", "Choose a later token."];
      const readings = data.lensPlaces.map((_, point) => readLens(data, point, token));
      if (!readings.every((reading) => reading)) return null;
      const tops = readings.map(({ top }) => top[0]), { id, probability: final } = tops.at(-1);
      const since = tops.findLastIndex((top) => top.id !== id) + 1, { label } = data.places[data.lensPlaces[since]];
      const share = (point) => number(storedProbability(tops[point].probability), lensAddress(data, point, "probabilities", token, id));
      return [
        sentence`After ${named(data, token)}, the most probable token is ${quoted(data.vocabulary[id])}, with probability ${share(tops.length - 1)}.`,
        sentence`In the lens it is the most probable token from ${since ? label.replace("after ", "") : "the embedding"} on, where it has probability ${share(since)}.`,
      ];
    },
  },
  {
    at: "contributions", title: "Contributions to a logit", isIn: (data) => data.hasContributions,
    words: (data, { token }) => {
      const position = token - data.lensFrom, atOnce = data.atOnce.parts;
      if (position < 0) return ["Contributions are kept for the last positions only.", "Choose a later token."];
      const parts = data.get("contributions.parts")?.value, stored = data.get(`contributions.${Math.floor(position / atOnce)}`);
      if (!parts || !stored) return null;
      const [id, logit, ...values] = stored.vector(position % atOnce, 0), most = argMax(values), least = argMax(values.map((value) => -value));
      const part = (i) => sentence`${partWords(parts[i])}, ${number(four(values[i]), addressOf("contributions", token, id, i))}`;
      return [
        sentence`The logit of ${quoted(data.vocabulary[id])} after ${named(data, token)} is ${number(four(logit), addressOf("head", token, id))}: the sum of what ${count(values.length, "part")} of the model add to it.`,
        ["Most is added by ", ...part(most), ", and least by ", ...part(least), "."],
      ];
    },
  },
  {
    at: "text", title: "Your turn",
    words: (data) => {
      const best = data.has("logits") ? argMax(Array.from(data.get("logits").whole)) : null;
      return [
        `Change a word of the text: ${best === null ? "the prediction" : `${quoted(data.vocabulary[best])}, the present prediction,`} and all other numbers follow.`,
        "Or click a token under “What comes next” to continue the text with it.",
      ];
    },
  },
];

const partWords = ({ name, layer, module, head }) => (layer === null ? name : head === null ? `${module.replace("_", " ")} in layer ${layer}` : `head ${head} in layer ${layer}`);

let index = 0;
let draw = () => {}; // shows the step with the numbers of the pass

const title = make("h2", { id: "tour-title" });
const words = make("div", { id: "tour-words", "aria-live": "polite", "aria-atomic": "true" });
const previous = button("Back", () => go(-1));
const next = button("Next", () => go(1));
const card = make("section", { id: "tour", class: "card tour", tabindex: -1, hidden: true, "aria-labelledby": "tour-title", onkeydown: (event) => {
  const action = { ArrowLeft: () => go(-1), ArrowRight: () => go(1), Escape: end }[event.key];
  if (!action || event.altKey || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  action();
} }, title, words, make("div", { class: "editor-row" }, previous, next, button("End the tour", () => end())));
const begin = button("Tour", () => {
  index = 0;
  card.hidden = false;
  draw();
  card.focus();
}, { id: "tour-button" });

// The button that begins the tour, and its card.
export function makeTour() {
  byId("main").before(card);
  return begin;
}

// A part of the page: the steps that this model has.
export function showTour(data, choice) {
  const steps = STEPS.filter(({ isIn }) => !isIn || isIn(data));
  draw = () => {
    if (card.hidden) return;
    index = Math.min(index, steps.length - 1);
    const step = steps[index];
    mark(step.at);
    title.textContent = `Tour ${index + 1} of ${steps.length}: ${step.title}`;
    say(step.words(data, choice) ?? ["The numbers of this step are being computed."]);
    setOff(previous, index === 0);
    setOff(next, index === steps.length - 1);
  };
  choice.listen((changed) => changed.has("under") && changed.size === 1 ? null : draw());
}

function go(by) {
  index = Math.max(0, index + by);
  draw();
}

function end() {
  card.hidden = true;
  mark(null);
  begin.focus();
}

// Screen readers speak the words again only when they change.
function say(sentences) {
  const lines = sentences.map((each) => make("p", {}, ...[each].flat()));
  if (words.innerHTML !== lines.map((line) => line.outerHTML).join("")) fill(words, ...lines);
}

// A button that had the focus keeps the keys of the card working when it is turned off.
function setOff(control, isOff) {
  if (isOff && document.activeElement === control) card.focus();
  control.hidden = isOff;
}

// Marks the card or section around an element, and brings it into view.
function mark(id) {
  const around = id && byId(id).closest(".card, section"), before = document.querySelector(".toured");
  if (around === before) return;
  before?.classList.remove("toured");
  around?.classList.add("toured");
  if (around) keepInView(around, "auto");
}
