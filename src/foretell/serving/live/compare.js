// The shown pass next to another one: of another text, of another model, or of the same model without changes.
import { lensAddress, readLens } from "../data.js";
import { bar, barHeading, button, byId, caption, fill, heading, headings, hint, make, numberCell, onLeave, region, tableHead } from "../dom.js";
import { isNumber, predictionOf } from "../outcomes.js";
import { four, opens, opensDifference, probability, quoted, short, visible } from "../format.js";
import { addFoldedPanel, signed } from "./panels.js";
import { fetchSections, session, setStale } from "./session.js";

const TOKENS = 12; // of each table: those with the largest probability in one of the passes

export function makeCompare(served) {
  // A model may be chosen before a text, which asks for no pass yet
  const model = make("select", { id: "other-model", onchange: () => (text.value ? compareWith(model.value, text.value) : session.note({ otherModel: model.value })) });
  const text = make("textarea", { id: "other-text", rows: 2, spellcheck: "false", dir: "auto", onchange: () => compareWith(model.value, text.value) });
  const panel = addFoldedPanel("compare", "Compare with another text or model",
    hint("The other pass has no changes. Without another text, “Compare” reads the same text with the other model or, if the model is the same, without the changes."),
    make("div", { class: "editor-row" }, make("label", { for: "other-model" }, "Other model"), model),
    make("label", { for: "other-text" }, "Other text"), text,
    make("div", { class: "editor-row" },
      button("Compare", () => compareWith(model.value, text.value || session.state.text)),
      button("End the comparison", () => compareWith("", ""))),
    make("div", { id: "compared", "aria-live": "polite" }));
  session.listen((state) => {
    if (document.activeElement !== text) text.value = state.otherText;
    const reads = served.find(({ name }) => name === state.model)?.reads;
    const isOffered = (each) => each.name === state.model || (each.reads === reads && reads !== "source");
    fill(model, ...served.filter(isOffered).map(({ name }) => make("option", { value: name }, name)));
    model.value = state.otherModel || state.model;
    if (state.otherText) panel.open = true;
  });
}

const compareWith = (otherModel, otherText) => session.update({ otherModel, otherText });

export function showCompare(data, choice) {
  const { otherText: text } = session.state, model = session.state.otherModel || session.state.model;
  const fillPanel = (...children) => { fill(byId("compared"), ...children); setStale("compare", false); };
  if (!text) return fillPanel();
  const leaving = new AbortController();
  onLeave(() => leaving.abort());
  let other = null;
  const show = () => other && fillPanel(...tables(data, other, { ...fields, words: "in the other pass", headWidth: other.shape.headWidth }));
  const fail = (reason) => { other = null; fillPanel(make("p", { class: "summary" }, `No comparison: ${reason}`)); };
  const { source, others, answer } = byId("other-model").value === model ? session.state : { source: "", others: [], answer: 0 }; // it reads the same
  const fields = { model, source, others, answer: Number(answer), text, appended: [], change: [] };
  otherPass(data, fields, leaving.signal, fail).then((pass) => { other = pass; show(); });
  choice.on(["data"], show);
}

// The other pass: its logits, and the lens at its last token; null if it cannot be had or compared, and why to `fail`.
async function otherPass(data, fields, signal, fail) {
  const outline = await fetchSections([], fields, { signal, fail, label: "Other text" });
  if (!outline) return null;
  const [here, there] = [data, outline].map(outcomesOf);
  if (here !== there) return fail(`${outline.model} predicts ${there}, and ${data.model} ${here}.`);
  return fetchSections(["logits", ...(outline.outcomes ? ["outcomes.logits"] : []), `lens.at.${outline.last}`], fields, { signal, fail });
}

// What a pass gives probabilities to, in words.
function outcomesOf(pass) {
  if (!pass.outcomes) return pass.hasLevels ? "values" : "tokens";
  if (isNumber(pass)) return "a number";
  const { kind, names } = pass.outcomes;
  return kind === "choice" ? "answers" : `the ${kind === "tags" ? "tags" : "labels"} ${[...names].sort().map(quoted).join(", ")}`;
}

// elsewhere: the fields of a number of the other pass.
function tables(data, other, elsewhere) {
  const [here, there] = [data, other].map(distributionOf);
  if (!here || !there) return [];
  const pieces = new Set([...likeliest(here), ...likeliest(there)]);
  const rows = [...pieces].map((piece) => ({ piece, own: here.get(piece) ?? NOWHERE, other: there.get(piece) ?? NOWHERE }))
    .sort((a, b) => Math.max(b.own.share, b.other.share) - Math.max(a.own.share, a.other.share)).slice(0, TOKENS);
  const isElsewhere = rows.some(({ own, other }) => own === NOWHERE || other === NOWHERE);
  return [
    region("Both distributions", make("table", { class: "bars" },
      caption(`${data.outcomes ? "The prediction" : "What comes next"}, after ${quoted(lastOf(data))} here and after ${quoted(lastOf(other))} there. The bar is the probability here, the line the one there.${isElsewhere ? ` ${NO_TOKEN}: this model has no token with this text.` : ""}`),
      tableHead(...headings([predictionOf(data).noun, "Here", "There", "Difference"]), barHeading()),
      make("tbody", {}, ...rows.map((row) => tokenRow(row, elsewhere))))),
    region("Both lenses", make("table", {},
      caption("The logit lens at the last token of each text: the most probable token after each layer."),
      tableHead(heading("Point"), heading("Here", true), make("td"), heading("There", true), make("td"), barHeading()),
      make("tbody", {}, ...lensRows(data, other, elsewhere)))),
  ];
}

const NOWHERE = { share: 0 }, NO_TOKEN = "—"; // of a text that is not a token there

function tokenRow({ piece, own, other }, elsewhere) {
  const numbers = [own.address && { address: own.address }, other.address && { address: other.address, ...elsewhere }];
  const cell = (words, attributes) => make("td", { class: "number", ...attributes }, words);
  return make("tr", {}, make("th", { scope: "row" }, make("bdi", { class: "piece" }, visible(piece))), ...[own, other].map(({ share }, i) => cell(numbers[i] ? probability(share) : NO_TOKEN, numbers[i] && opens(numbers[i]))),
    numbers.every(Boolean) ? cell(signed(four, own.share - other.share), opensDifference(...numbers)) : cell(NO_TOKEN), bar(own.share, other.share));
}

function lensRows(data, other, elsewhere) {
  const count = Math.max(data.lensPlaces.length, other.lensPlaces.length);
  const cells = (pass, fields, point) => {
    const best = point < pass.lensPlaces.length && readLens(pass, point, pass.last)?.top[0];
    if (!best) return [numberCell("…"), make("td", {})];
    return [numberCell(make("bdi", { class: "piece" }, short(pass.vocabulary[best.id]))), numberCell(probability(best.probability), opens({ address: lensAddress(pass, point, "probabilities", pass.last, best.id), ...fields }))];
  };
  const label = (point) => (data.lensPlaces.length > point ? data : other);
  return Array.from({ length: count }, (_, point) => make("tr", {},
    make("th", { scope: "row" }, label(point).places[label(point).lensPlaces[point]].label), ...cells(data, {}, point), ...cells(other, elsewhere, point)));
}

// The probability of each token's text, with its address: models with other tokenizers are compared by text.
function distributionOf(pass) {
  const prediction = predictionOf(pass);
  return prediction && new Map(Array.from(prediction.shares, (share, id) => [prediction.names[id], { share, address: prediction.address(id) }]));
}

const likeliest = (distribution) => [...distribution].sort(([, a], [, b]) => b.share - a.share).slice(0, TOKENS).map(([piece]) => piece);
const lastOf = (pass) => pass.tokens[pass.last].text;
