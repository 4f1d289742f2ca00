// The strongest neurons of the chosen feed-forward layer at the chosen token, and what they write into the vocabulary.
import { blockOf, whyMissing } from "./data.js";
import { button, byId, caption, fill, heading, headings, hint, make, numberCell, region, tableHead } from "./dom.js";
import { addressOf, four, named, short, two, visible } from "./format.js";

export function showNeurons(data, choice) {
  const show = () => {
    const { layer, token } = choice, neurons = data.neurons[layer];
    byId("neurons").hidden = !neurons;
    byId("neurons-title").textContent = neurons ? `The strongest neurons at ${named(data, token)} in layer ${layer}` : "";
    if (!neurons) return;
    const ids = data.get(`neurons.ids.${layer}`), values = data.get(`neurons.values.${layer}`);
    fill(byId("neurons"), ids && values ? neuronTable(data, choice, neurons, ids, values) : hint(whyMissing(data)));
  };
  choice.on(["token", "layer", "data"], show);
}

function neuronTable(data, choice, names, ids, values) {
  const { layer, token } = choice;
  const written = writes(data, layer, token), neuron = `${blockOf(data, layer)}.neurons`;
  const activation = names.find((name) => name.endsWith(".activation"));
  const columns = names.map((name) => name.split(".").at(-1));
  const line = (id, k) => {
    const numbers = values.vector(token, k);
    return make("tr", {}, make("th", { scope: "row" }, activation && data.switchOff ? button(String(id), () => data.switchOff({ value: activation, neurons: [id] }), { class: "link", title: `Switch off neuron ${id}` }) : String(id)),
      ...names.map((name, i) => numberCell(four(numbers[i]), addressOf(name, token, id))),
      numberCell(four(numbers.at(-1)), addressOf(`${neuron}.vector_norm`, token, id)),
      ...(written ? [written(k).raised, written(k).lowered].map((tokens) => tokensCell(data, tokens, (to) => addressOf(`${neuron}.contributions`, token, id, to))) : []));
  };
  const words = `The neurons that add the longest vectors to the stream: ${columns.join(", ")} are numbers of the pass, “length” is the norm of the vector that the neuron adds.`
    + (written ? " Raised and lowered: the tokens whose logits the neuron changes most, with its direct contribution to the logit." : ` ${whyMissing(data)}`);
  return region("The strongest neurons",
    make("table", { class: "neurons" }, caption(words),
      tableHead(...headings(["Neuron", ...columns, "length"]), ...(written ? ["Raised", "Lowered"].map((name) => heading(name)) : [])),
      make("tbody", {}, ...ids.vector(token).map(line))));
}

// A function of k: {id, value} of the tokens that neuron k of the list raises or lowers. Null if the page lacks them.
function writes(data, layer, token) {
  const position = token - data.lensFrom, atOnce = data.atOnce.writes;
  const stored = position < 0 || !data.hasContributions ? null : data.get(`neurons.writes.${layer}.${Math.floor(position / atOnce)}`);
  if (!stored) return null;
  const [, , count] = stored.shape;
  return (k) => {
    const tokens = Array.from({ length: count }, (_, i) => stored.vector(position % atOnce, k, i)).map(([id, value]) => ({ id, value }));
    return { raised: tokens.slice(0, count / 2).filter(({ value }) => value > 0), lowered: tokens.slice(count / 2).filter(({ value }) => value < 0) };
  };
}

const tokensCell = (data, tokens, address) => make("td", { class: "wrapped" }, ...tokens.map(({ id, value }) =>
  make("span", { class: "written", title: `${visible(data.vocabulary[id])}: ${four(value)}` }, make("bdi", { class: "piece" }, short(data.vocabulary[id], 10)), make("small", { "data-address": address(id) }, two(value)))));
