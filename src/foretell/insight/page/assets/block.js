// The values of the chosen layer in the order of the pass: norms, queries, keys, values, heads, the feed-forward layer.
import { argMax, encoderLayer, groupOf, streamVector, whyMissing } from "./data.js";
import { byId, fill, hint, make } from "./dom.js";
import { addressOf, four, named, quoted } from "./format.js";
import { makeStrips } from "./strips.js";

const OWN = ["attention", "cross_attention"]; // each has a section; any other part is shown like a feed-forward layer

export const hasFeedforward = (data) => data.blocks.flat().some(({ name }) => !OWN.includes(name));
// Each shows the values of some parts of a layer, of the decoder or of the encoder.
export const showAttentionValues = (data, choice) => showValues(data, choice, DECODER, "attention-values", "attention", ({ name }) => name === "attention");
export const showCrossValues = (data, choice) => data.memory && showValues(data, choice, DECODER, "cross-values", "cross_attention", ({ name }) => name === "cross_attention");
export const showFeedforwardValues = (data, choice) => hasFeedforward(data) && showValues(data, choice, DECODER, "feedforward-values", "feedforward", ({ name }) => !OWN.includes(name));
export const showEncoderAttention = (data, choice) => data.memory && showValues(data, choice, ENCODER, "encoder-attention", "attention", ({ name }) => name === "attention");
export const showEncoderFeedforward = (data, choice) => data.memory && showValues(data, choice, ENCODER, "encoder-feedforward", "feedforward", ({ name }) => name !== "attention");

// The layers of a stack: the chosen one, its parts, the sections of its values at one position, and the tokens that it reads.
const DECODER = {
  layer: (data, { layer }) => layer, parts: (data, layer) => data.blocks[layer], section: "values.at",
  words: (data, choice) => `Layer ${choice.layer} at ${named(data, choice.token)}`,
  position: (data, choice, of) => {
    if (of === "key") return { position: choice.key, of: ` of ${named(data, choice.key)}` };
    return of === "memory" ? { position: choice.sourceToken, of: ` of ${inSource(data, choice.sourceToken)}` } : { position: choice.token, of: "" };
  },
};
const ENCODER = {
  layer: (data, { layer }) => encoderLayer(data, layer), parts: (data, layer) => data.encoderBlocks[layer], section: "encoder.at",
  words: (data, choice) => `Encoder layer ${encoderLayer(data, choice.layer)} at ${inSource(data, choice.sourceToken)} of the source`,
  position: (data, choice, of) => {
    if (of !== "key") return { position: choice.sourceToken, of: "" };
    const weights = data.get(`memory.encoder.${encoderLayer(data, choice.layer)}`)?.vector(choice.head, choice.sourceToken) ?? [1];
    const key = argMax(weights);
    return { position: key, of: ` of ${inSource(data, key)}` };
  },
};
const inSource = (data, position) => `${quoted(data.memory.tokens[position].text)} (${position})`;

function showValues(data, choice, stack, place, name, isWanted) {
  const strips = makeStrips(place, `${stack === ENCODER ? "Encoder: t" : "T"}he vectors of the chosen layer, ${TITLES[name]}`);
  const facts = make("dl", { class: "compared" });
  const note = hint();
  fill(byId(place), facts, strips.element, note);
  const show = () => {
    byId(`${place}-title`).textContent = `${stack.words(data, choice)}: ${TITLES[name]}`;
    const values = stack.parts(data, stack.layer(data, choice)).filter(isWanted).flatMap((part) => part.values);
    const read = values.map((value) => ({ value, line: readLine(data, choice, value, stack) })).filter(({ line }) => line);
    const missing = values.length - read.length;
    fill(note, missing && read.length ? `${missing} of the ${values.length} values of this layer are missing. ${whyMissing(data)}` : "");
    fill(facts, ...read.filter(({ value }) => isStatistic(value)).flatMap(({ value, line }) => statisticFacts(value, line)));
    strips.show(read.filter(({ value }) => !isStatistic(value)).map(({ line }) => line), whyMissing(data));
  };
  choice.on(["token", "key", "sourceToken", "layer", "head", "data"], show);
}

const TITLES = {
  attention: "from the stream to queries, keys and values, and back to the stream",
  cross_attention: "from the stream to the source, and back to the stream",
  feedforward: "from the stream through the feed-forward layer, and back to the stream",
};

const isStatistic = ({ axes }) => axes.at(-1) === "1";

// A statistic of a norm, and the number that the norm divides by.
function statisticFacts({ label, epsilon }, { values: [value], address }) {
  const facts = [make("div", {}, make("dt", {}, label), make("dd", { "data-address": address(0) }, four(value)))];
  const [spread, of] = label.split(" of ");
  const divisor = address(0).replace(/\.\w+\[/, ".divisor["); // of the norm that has this statistic
  if (epsilon !== null) facts.push(make("div", {}, make("dt", { title: `ε = ${epsilon}` }, `divisor of ${of}, √(${spread} + ε)`), make("dd", { "data-address": divisor }, four(Math.sqrt(value + epsilon)))));
  return facts;
}

// The vector of a value for the chosen token (or key, or token of the memory) and head; null if the page lacks it.
function readLine(data, choice, value, stack = DECODER) {
  const { position, of } = stack.position(data, choice, value.of);
  const { headWidth } = data.shape;
  const index = { H: choice.head, G: groupOf(data, choice.head), T: position, S: position };
  const lead = value.axes.slice(0, -1), last = value.axes.at(-1);
  const values = wholeVector(data, value, lead.map((axis) => index[axis])) ?? vectorAt(data, `${stack.section}.${stack.layer(data, choice)}.${position}`, value, index);
  if (!values) return null;
  const from = last.endsWith("*E") ? index[last[0]] * headWidth : 0;
  return {
    label: `${value.label}${of}`,
    values: last.endsWith("*E") ? values.slice(from, from + headWidth) : values,
    address: (i) => addressOf(value.name, ...lead.map((axis) => index[axis]), ...(last === "1" ? [] : [from + i])),
    unit: last === "F" ? "neuron" : "dimension",
  };
}

// From the section with all positions. A live page asks for it only if no section has single positions.
function wholeVector(data, { section, offset }, lead) {
  if (section.startsWith("stream.") || section === "embed.sum") return streamVector(data, Number(section.split(".")[1]) || 0, lead[0]);
  return offset === null || data.has(section) ? data.get(section)?.vector(...lead) : undefined;
}

// From the section with the values of a layer at one position.
function vectorAt(data, section, { axes, offset }, index) {
  const stored = offset === null ? null : data.get(section);
  if (!stored) return null;
  const { heads, groups, headWidth, width, feedforward } = data.shape;
  const sizes = { D: width, E: headWidth, F: feedforward, "H*E": heads * headWidth, "G*E": groups * headWidth };
  const size = sizes[axes.at(-1)] ?? Number(axes.at(-1)), row = ["H", "G"].includes(axes[0]) ? index[axes[0]] : 0;
  return stored.vector().slice(offset + row * size, offset + (row + 1) * size);
}

// The output of every head at the chosen token, before the output projection.
export function showHeadOutputs(data, choice) {
  const strips = makeStrips("head-outputs", "The outputs of all heads at the chosen token");
  fill(byId("head-outputs"), strips.element);
  const show = () => {
    const { layer, token } = choice;
    byId("head-outputs-title").textContent = `The output of each head at ${named(data, token)} in layer ${layer}`;
    const value = data.blocks[layer].flatMap((part) => part.values).find(({ path }) => path.endsWith(".core"));
    const lines = Array.from({ length: data.shape.heads }, (_, head) => value && readLine(data, { ...choice, head }, value));
    strips.show(lines.filter((line) => line).map((line, head) => ({ ...line, label: `head ${head}` })), whyMissing(data));
  };
  choice.on(["token", "layer", "data"], show);
}
