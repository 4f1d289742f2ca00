// The page's data: the structure as JSON, and packed numbers. What the page cannot do without is opened at the start;
// the rest stands behind the script that starts the page, and is opened when the whole page is there.
import { at } from "page/dom.js";

const STEPS = 10000;
// kind -> bytes of a number, how to see the bytes as numbers, and what one whole step is worth
const KINDS = {
  weight16: [2, Uint16Array, STEPS],
  rounded16: [2, Int16Array, STEPS],
  rounded32: [4, Int32Array, STEPS],
  whole32: [4, Int32Array, 1],
  float32: [4, Float32Array, 1],
};

export async function readData() {
  const data = JSON.parse(at("structure").textContent);
  const opened = new Map();
  const openAll = async (sections) => {
    for (const section of await Promise.all(sections.map(open))) opened.set(section.name, section);
  };
  await openAll(data.sections);
  data.get = (name) => opened.get(name);
  data.complete = false;
  data.openRest = async () => {
    await wholePage();
    for (const section of data.rest) await openAll([section]); // one by one, so that the page answers in between
    data.complete = true;
  };
  data.vocabulary = data.get("vocabulary").value;
  data.last = data.tokens.length - 1;
  return data;
}

const wholePage = () => new Promise((done) => {
  if (document.readyState !== "loading") done();
  else document.addEventListener("DOMContentLoaded", done, { once: true });
});

export const whyMissing = (data) => (data.complete ? "Its numbers are not in this page; the end of the page says why." : "Its numbers are being opened.");

async function open({ name, kind, shape }) {
  const holder = at(name);
  const bytes = await unzip(fromBase64(holder.textContent));
  holder.remove();
  if (kind === "text") return { name, value: JSON.parse(new TextDecoder().decode(bytes)) };
  const [size, View, steps] = KINDS[kind];
  return makeArray(name, shape, new View(joinPlanes(bytes, size).buffer), steps);
}

// `whole` are the stored numbers; value(i) is what they stand for.
function makeArray(name, shape, whole, steps) {
  const width = shape[shape.length - 1];
  const offset = (indices) => indices.reduce((sum, index, axis) => sum * shape[axis] + index, 0);
  return {
    name, shape, whole, steps,
    at: (...indices) => whole[offset(indices)] / steps,
    vector: (...indices) => {
      const from = offset(indices) * width;
      return Array.from(whole.subarray(from, from + width), (one) => one / steps);
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

// All lowest bytes come first, all highest last; this puts the bytes of each number together again.
function joinPlanes(bytes, size) {
  const count = bytes.length / size;
  const joined = new Uint8Array(bytes.length);
  for (let plane = 0; plane < size; plane++) {
    const from = plane * count;
    for (let i = 0, to = plane; i < count; i++, to += size) joined[to] = bytes[from + i];
  }
  return joined;
}
