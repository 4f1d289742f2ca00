// The source that a decoder reads: encoder-decoder attention and the encoder's own, with the tokens of both texts.
import { inkOn, onTheme, weightColor } from "./colors.js";
import { argMax, coreOf, encoderLayer, whyMissing } from "./data.js";
import { button, byId, caption, fill, heading, make, region, tableHead } from "./dom.js";
import { addressOf, four, quoted, short, visible } from "./format.js";

const NUMBERS = 24; // columns up to which every cell shows its weight

export function showMemory(data, choice) {
  if (!data.memory) return;
  const chips = data.memory.tokens.map((token, i) => button(make("bdi", {}, visible(token.text)), () => choice.set({ sourceToken: i }), { class: "token" }));
  fill(byId("memory-tokens"), ...chips);
  const paint = () => {
    chips.forEach((chip, i) => chip.setAttribute("aria-pressed", i === choice.sourceToken));
    paintMaps(data, choice);
  };
  choice.on(["token", "layer", "head", "sourceToken"], paint);
  onTheme(paint);
}

function paintMaps(data, choice) {
  const { layer, head, token } = choice;
  const own = encoderLayer(data, layer);
  const cross = data.get(`memory.cross.${layer}`);
  const encoder = data.get(`memory.encoder.${own}`);
  if (!data.all(`memory.cross.${layer}`, `memory.encoder.${own}`)) return fill(byId("cross-reading"), whyMissing(data));
  const [crossName, encoderName] = [coreOf(data, layer, "cross"), coreOf(data, own, "encoder")].map((core) => addressOf(`${core}.weights`, head));
  fill(byId("cross-title"), `Layer ${layer}, head ${head}: from the translation to the source `, make("code", {}, crossName));
  fill(byId("cross-map"), map("Rows: tokens of the text; columns: tokens of the source", data.tokens, data.memory.tokens,
    (row) => cross.vector(head, row), crossName, token, (row) => choice.set({ token: row })));
  fill(byId("cross-reading"), strongest(data, cross.vector(head, token), token));
  fill(byId("encoder-title"), `Encoder layer ${own}, head ${head}: the source with itself `, make("code", {}, encoderName));
  fill(byId("encoder-map"), map("Rows and columns: tokens of the source", data.memory.tokens, data.memory.tokens,
    (row) => encoder.vector(head, row), encoderName, choice.sourceToken, (row) => choice.set({ sourceToken: row })));
}

function strongest(data, weights, token) {
  const best = argMax(weights);
  return `${quoted(data.tokens[token].text)} (${token}) reads most of ${quoted(data.memory.tokens[best].text)} (${best}): ${four(weights[best])}`;
}

// A table of weights. A click on a row's name chooses it, where rows can be chosen.
function map(title, queries, keys, weightsOf, name, chosen, choose) {
  const head = tableHead(make("td", {}), ...keys.map((token) => heading(make("span", {}, short(token.text, 12)))));
  const rows = queries.map((token, row) => make("tr", { class: row === chosen ? "chosen" : null },
    make("th", { scope: "row" }, choose
      ? button(short(token.text, 14), () => choose(row), { class: "quiet" })
      : short(token.text, 14)),
    ...weightsOf(row).map((weight, key) => cell(weight, `${visible(token.text)} → ${visible(keys[key].text)}: ${four(weight)}`, keys.length, name.replace("]", `,${row},${key}]`)))));
  return region(title,
    make("table", { class: "weights" }, caption(title), head, make("tbody", {}, ...rows)));
}

const cell = (weight, title, columns, address) => make("td", { title, "data-address": address, style: `background:${weightColor(weight)};color:${inkOn(weight)}` },
  columns > NUMBERS ? "" : weight.toFixed(2).replace(/^0/, ""));
