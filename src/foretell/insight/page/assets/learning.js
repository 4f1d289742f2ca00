// Learning: from the loss of the text by the chain rule to a weight, one step of gradient descent, and what it changes.
import { whyMissing } from "./data.js";
import { button, byId, caption, fill, headings, hint, make, numberCell, region, tableHead } from "./dom.js";
import { addressOf, four, named, probability, quoted } from "./format.js";
import { barTable } from "./next.js";

// On a live page a button takes the step; a file has its numbers.
export function showLearning(data, choice) {
  let isTaken = !data.append;
  const take = () => { isTaken = true; show(); };
  const show = () => {
    if (!isTaken) return fill(byId("learning"), button("Take one step on this text", take), hint("It is taken in a copy of the model: the model itself stays as it is."));
    const step = data.get("learning.step")?.value;
    fill(byId("learning"), ...(step ? results(data, step) : [hint(data.append ? "The step is being computed." : whyMissing(data))]));
  };
  choice.on(["data"], show);
}

function results(data, { rate, position, loss, newLoss, chain: [logit, output, weight], ids, before, after }) {
  const at = named(data, position), token = quoted(data.vocabulary[logit.token]);
  const row = (words, name, value, slope, address) => make("tr", {}, make("th", { scope: "row" }, words, " ", make("code", {}, name)),
    numberCell(digits(value), address), slope === null ? make("td") : numberCell(digits(slope), address && `grad:${address}`));
  const update = `${digits(weight.value)} − ${rate} · ${weight.gradient < 0 ? `(${digits(weight.gradient)})` : digits(weight.gradient)}`;
  const lines = [
    row("The mean loss of the text", "loss.mean", loss, null, "loss.mean"),
    row(`The logit of ${token} after ${at}, which the model predicts worst`, logit.address, logit.value, logit.gradient, logit.address),
    row(`What head ${output.head} computes there`, output.address, output.value, output.gradient, output.address),
    row("The weight of its values with the largest gradient", weight.address, weight.value, weight.gradient, weight.address),
    row("The new weight: weight − rate · gradient", update, weight.new, null),
    row("The loss with all new weights", "", newLoss, null),
  ];
  const shares = ids.map((id, i) => ({ text: data.vocabulary[id], probability: after[i], before: before[i], addressBefore: addressOf("probabilities", position, id), mark: id === logit.token ? "follows" : "" }));
  return [
    region("From the loss to a weight", make("table", { class: "chain" }, caption(`The learning rate is ${rate}. Each gradient follows from the ones above it, by the chain rule.`),
      tableHead(...headings(["Number", "Value", "Gradient of the loss"])), make("tbody", {}, ...lines))),
    barTable(`What follows ${at}, before the step and after it`, shares, probability),
  ];
}

const digits = (value) => (Math.abs(value) < 0.001 && value !== 0 ? value.toExponential(3).replaceAll("-", "−") : Math.abs(value) < 1 ? value.toFixed(6).replace("-", "−") : four(value));
