// The state as Python: code that runs the same pass with the library, and prints the numbers of the page.

// JSON is Python, but for the names of three values, which a request does not have, and non-ASCII text is the same.
const literal = (value) => JSON.stringify(value);

const HELPER = `def at(value, axis, indices):
    chosen = torch.zeros(value.shape[axis], dtype=torch.bool)
    chosen[indices] = True
    return chosen.reshape([-1 if each == axis % value.dim() else 1 for each in range(value.dim())])


`;

const AXES = [["heads", 1], ["positions", -2], ["neurons", -1]];

// The imports, and the model as the page has it: a translation model, one with the head of a task, or a forecaster.
function modelOf({ source, text, others, appended }, { outcomes, hasLevels }, model, given) {
  if (source) return `from foretell.translation.translator import load_translator\n\nmodel = load_translator(${literal(model)}).given(${literal(source)})  ${given}`;
  if (outcomes) return `from foretell.finetuning.label_attribution import readout_of\nfrom foretell.finetuning.predict import as_task_input\n\nmodel = as_task_input(foretell.load(${literal(model)})${others.length ? `, ${literal(others)}` : ""}${outcomes.first ? `, shown=${outcomes.first}` : ""})  ${given}`;
  if (hasLevels) return `from foretell.forecasting.forecaster import load_forecaster\nfrom foretell.forecasting.value_model import reading_values\n\nmodel = reading_values(load_forecaster(${literal(model)}), ${literal(text)}${appended.length ? `, read_after=${appended.length}` : ""})  ${given}`;
  return `\nmodel = foretell.load(${literal(model)})  ${given}`;
}

// Prints the labels with their probabilities, or the number.
const outcome = ({ names, kind }, text) => `outcomes = readout_of(model, ${literal(text)})
outputs = outcomes.read(model.decoder, hidden).double()
${kind === "tags" ? `for token, shares in zip(model.texts_of(ids), outputs.softmax(-1), strict=True):
    print(f"{shares.max():.4f}", repr(outcomes.names[shares.argmax()]), repr(token))` : names.length > 1 ? `for name, share in zip(outcomes.names, outputs.softmax(0).tolist(), strict=True):
    print(f"{share:.4f}", repr(name))` : 'print(f"number {outputs[0]:.4f}")'}
`;

// Prints the most probable tokens; filters: the settings of sampling, [name, setting] in their order.
const topTokens = (filters) => (filters.length ? `filtered = last.double()[None]
for name, setting in ${literal(filters)}:
    filtered = FILTERS[name][1](setting)(filtered, ())
for token in model.top_tokens(last, 5):
    print(f"{filtered[0].softmax(-1)[token.id]:.4f}", repr(token.text))` : `for token in model.top_tokens(last, 5):
    print(f"{token.probability:.4f}", repr(token.text))`);

// argument: what the server opened the model from, unless it keeps that to itself. filters: as of `topTokens`.
export function asPython(state, data, argument, filters) {
  const { text, appended, change } = state;
  const isLimited = change.some((each) => AXES.some(([name]) => each[name]));
  return `import foretell
import torch
${filters.length ? "from foretell.generation.filters import FILTERS\n" : ""}${argument ? modelOf(state, data, argument, "# as given to `foretell serve`") : modelOf(state, data, state.model, "# give the path of this model")}
ids = model.encode(${literal(text)})${appended.length ? ` + ${literal(appended)}` : ""}
${change.length ? "\n\n" : ""}${isLimited ? HELPER : ""}${change.map(changeCode).join("")}${change.length ? `replace = {${replaced(change)}}\n` : ""}
with torch.inference_mode()${change.length ? ", foretell.Trace(model, replace=replace)" : ""}:
    hidden = model.decoder.hidden(torch.tensor([ids]))[0]  # (T, D)
    last = model.log_probabilities(model.decoder.head(hidden[-1:]))[0]  # (V,)
    logprobs = model.log_probabilities(model.decoder.head(hidden[:-1]))
${topTokens(filters)}
if len(ids) > 1:
    losses = -logprobs.gather(1, torch.tensor(ids[1:])[:, None])
    print(f"loss {losses.mean():.4f}")
${data.outcomes ? outcome(data.outcomes, text) : ""}`;
}

function changeCode(change, i) {
  const limits = AXES.filter(([name]) => change[name]).map(([name, axis]) => `at(value, ${axis}, ${literal(change[name])})`);
  const patch = change.patch === undefined ? "" : `with torch.inference_mode(), foretell.Trace(model, ${literal(change.value)}) as other:
    model(model.encode(${literal(change.patch)}))
patch_${i} = other[${literal(change.value)}]


`;
  const result = limits.length ? `torch.where(${limits.join(" & ")}, new, value)` : "new";
  return `${patch}def change_${i}(value):
${newValue(change, i)}
    return ${result}


`;
}

function newValue({ scale, add, set, patch }, i) {
  if (scale !== undefined) return `    new = value * ${literal(scale)}`;
  if (patch !== undefined) return `    shared = min(value.shape[-2], patch_${i}.shape[-2])
    new = torch.cat((patch_${i}[..., :shared, :], value[..., shared:, :]), -2)`;
  const operand = `torch.tensor(${literal(add ?? set)}, dtype=value.dtype)`;
  return add === undefined ? `    new = ${operand}.expand_as(value)` : `    new = value + ${operand}`;
}

// Changes of one value apply in turn.
function replaced(change) {
  const byValue = new Map();
  change.forEach(({ value }, i) => byValue.set(value, byValue.has(value) ? `change_${i}(${byValue.get(value)})` : `change_${i}(value)`));
  return [...byValue].map(([value, call]) => `${literal(value)}: lambda value: ${call}`).join(", ");
}
