// The page's data: the structure as JSON, and packed numbers: attention weights, queries and keys, the logit lens.
import { byId } from "./dom.js";
import { addressOf } from "./format.js";

const STEPS = 10000;
// kind -> bytes per number, the typed array, and the stored steps per unit
const KINDS = {
  weight16: [2, Uint16Array, STEPS],
  rounded16: [2, Int16Array, STEPS],
  rounded32: [4, Int32Array, STEPS],
  whole32: [4, Int32Array, 1],
  float32: [4, Float32Array, 1],
};

// The data of a pass: its structure, and its sections by name. `get` returns a section, or undefined and asks for it.
export function makeData(structure, ask) {
  const opened = new Map();
  return {
    firstQuery: 0, cut: [], ...structure,
    last: structure.tokens.length - 1,
    complete: false,
    has: (name) => opened.has(name),
    get(name) {
      if (!opened.has(name)) ask(name);
      return opened.get(name);
    },
    all(...names) { // asks for all of them, even if one is missing
      return names.map((name) => this.get(name)).every(Boolean);
    },
    put: async (packed) => { opened.set(packed.name, await open(packed)); },
  };
}

// The data of a page in a file. The sections before the page's script are read at the start, the others by `openRest`.
export async function readFile() {
  const structure = JSON.parse(byId("structure").textContent);
  const data = makeData(structure, () => {});
  const take = (section) => {
    const holder = byId(section.name);
    holder.remove();
    return data.put({ ...section, content: holder.textContent });
  };
  await Promise.all(structure.sections.map(take));
  data.vocabulary = data.get("vocabulary").value;
  data.openRest = async () => {
    await wholePage();
    for (const section of structure.rest) await take(section); // one by one, so that the page stays responsive
    data.complete = true;
  };
  return data;
}

const wholePage = () => new Promise((done) => {
  if (document.readyState !== "loading") done();
  else document.addEventListener("DOMContentLoaded", done, { once: true });
});

export const whyMissing = (data) => (data.complete ? "These numbers are not in this page; the reason is at the end of the page." : "These numbers are being read.");

export async function open({ name, kind, shape, content }) {
  const bytes = await unzip(fromBase64(content));
  if (kind === "text") return { name, value: JSON.parse(new TextDecoder().decode(bytes)) };
  const [size, View, steps] = KINDS[kind];
  return makeArray(name, shape, new View(joinPlanes(bytes, size).buffer), steps);
}

// `whole` are the stored integers; at() and vector() return the numbers.
function makeArray(name, shape, whole, steps) {
  const width = shape[shape.length - 1];
  const offset = (indices) => indices.reduce((sum, index, axis) => sum * shape[axis] + index, 0);
  return {
    name, shape, whole, steps,
    at: (...indices) => whole[offset(indices)] / steps,
    vector: (...indices) => {
      const from = offset(indices) * width;
      return Array.from(whole.subarray(from, from + width), (stored) => stored / steps);
    },
  };
}

function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  return bytes;
}

async function unzip(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Reverses the byte planes: all lowest bytes come first, all highest last.
function joinPlanes(bytes, size) {
  const count = bytes.length / size;
  const joined = new Uint8Array(bytes.length);
  for (let plane = 0; plane < size; plane++) {
    const from = plane * count;
    for (let i = 0, to = plane; i < count; i++, to += size) joined[to] = bytes[from + i];
  }
  return joined;
}

// Attention weights. The rows of a layer follow each other, each from its first visible key.
export function firstKey(data, layer, query) {
  const window = data.windows[layer];
  return window === null ? 0 : Math.max(0, query - window + 1);
}

export const isVisible = (data, layer, query, key) => key <= query && key >= firstKey(data, layer, query);
export const isKept = (data, query) => query >= data.firstQuery;

// The number of weights of a head before a row.
function before(data, layer, query) {
  const window = data.windows[layer] ?? Infinity;
  const growing = Math.min(query, window);
  const full = Math.max(0, query - growing);
  return (growing * (growing + 1)) / 2 + (full && full * window);
}

// The row of a query in ten-thousandths, from its first visible key; empty if it was left out.
export function weightRow(data, layer, head, query) {
  const section = isKept(data, query) && data.get(`attention.${layer}`);
  if (!section) return new Uint16Array(0);
  const { whole, shape } = section;
  const from = head * shape[1] + before(data, layer, query) - before(data, layer, data.firstQuery);
  return whole.subarray(from, from + query - firstKey(data, layer, query) + 1);
}

export function weight(data, layer, head, query, key) {
  if (!isVisible(data, layer, query, key)) return 0;
  return (weightRow(data, layer, head, query)[key - firstKey(data, layer, query)] ?? 0) / 10000;
}

export function strongest(data, layer, head, query) {
  return firstKey(data, layer, query) + argMax(weightRow(data, layer, head, query));
}

// The token of the source that a token reads most of; 0 without a source.
export function strongestSource(data, layer, head, token) {
  const weights = data.memory && data.get(`memory.cross.${layer}`)?.vector(head, token);
  return weights ? argMax(weights) : 0;
}

export const encoderLayer = (data, layer) => Math.min(layer, data.memory.layers - 1); // the encoder may have fewer

// Scaled attention scores, recomputed from queries and keys to four decimals, if the page has them.
export const hasOperands = (data, layer) => data.all(`queries.${layer}`, `keys.${layer}`);

// A live page has all bits of the vectors, a file four decimals.
export const isRounded = (data, layer) => data.get(`queries.${layer}`).steps !== 1;

export function queryVector(data, layer, head, token) {
  return data.get(`queries.${layer}`).vector(head, token);
}

// Consecutive query heads share one key head.
export const groupOf = ({ shape: { heads, groups } }, head) => Math.floor(head / (heads / groups));
export const keyVector = (data, layer, head, token) => data.get(`keys.${layer}`).vector(groupOf(data, head), token);

// The stream of a token at a point; undefined while it is being read.
export function streamVector(data, point, token) {
  const whole = point ? `stream.${point}` : "embed.sum";
  return data.has(whole) ? data.get(whole).vector(token) : data.get(`streams.${token}`)?.vector(point);
}

// The path of the attention core of a layer: the decoder's own, or of kind “cross” or “encoder”; and the address of a number in it.
export const coreOf = (data, layer, kind = "own") => data.cores[kind][layer];
export const inCore = (data, layer, name, ...index) => addressOf(`${coreOf(data, layer)}.${name}`, ...index);

// The path of the block that a layer is, and of the stream after it; layer -1 is the embedding.
export const blockOf = (data, layer) => data.places.find((place) => place.layer === layer).name;

export const argMax = (values) => values.reduce((best, value, i) => (value > values[best] ? i : best), 0);
export const dot = (a, b) => a.reduce((sum, value, i) => sum + value * b[i], 0);

// q·k / sqrt(E) for every visible key, from the first.
export function scaledScores(data, layer, head, token) {
  const query = queryVector(data, layer, head, token);
  const first = firstKey(data, layer, token);
  return Array.from({ length: token - first + 1 }, (_, i) => dot(query, keyVector(data, layer, head, first + i)) / Math.sqrt(query.length));
}

export function softmax(values) {
  const largest = values.reduce((most, value) => Math.max(most, value), -Infinity); // spreading a vocabulary overflows the stack
  const powers = values.map((value) => Math.exp(value - largest));
  const total = powers.reduce((sum, power) => sum + power, 0);
  return { powers, total, largest, shares: powers.map((power) => power / total) };
}

// The logit lens: the top tokens at each point of the stream, and probability and rank of the next token of the text.
export const hasLens = (data, token) => token >= data.lensFrom;

// Undefined while the numbers are being read. A live page asks for one position, unless it has all positions.
export function readLens(data, point, token) {
  if (!LENS.every((name) => data.has(`lens.${name}.${point}`))) {
    const row = data.get(`lens.at.${token}`);
    return row && readingOf(row.vector(point));
  }
  const position = token - data.lensFrom;
  const [ids, probabilities, logits, following, ranks, entropies] = LENS.map((name) => data.get(`lens.${name}.${point}`));
  const vectors = [probabilities, logits].map((section) => section.vector(position));
  return {
    top: ids.vector(position).map((id, i) => ({ id, probability: vectors[0][i], logit: vectors[1][i] })),
    following: following.at(position), rank: ranks.at(position), entropy: entropies.at(position),
  };
}

// A row of `lens.at`: ids, probabilities and logits of the top tokens; then three numbers.
function readingOf(row) {
  const count = (row.length - 3) / 3, [following, rank, entropy] = row.slice(-3);
  return { top: Array.from({ length: count }, (_, i) => ({ id: row[i], probability: row[count + i], logit: row[2 * count + i] })), following, rank, entropy };
}

// The address of a number of the lens at a point; after the last layer it is a number of the pass.
export function lensAddress(data, point, name, ...index) {
  const isLast = point === data.lensPlaces.length - 1;
  return addressOf(isLast ? name : `${data.places[data.lensPlaces[point]].name}.lens.${name}`, ...index);
}

// Which points have the lens of all positions; a live page reads them one after the other.
export const lensRows = (data) => data.lensPlaces.map((_, point) => data.all(...LENS.map((name) => `lens.${name}.${point}`)));
const LENS = ["ids", "probabilities", "logits", "following", "ranks", "entropies"];
