// A slider through the served steps of a run, which are models named RUN@step-N.
import { make } from "../dom.js";
import { session } from "./session.js";

const STEP = /^(.*)@step-(\d+)$/;

// The slider for the shown model; hidden if no other step of its run is served. A step keeps text, changes and choices.
export function makeSteps(served) {
  const slider = make("input", { id: "step", type: "range", min: 0, step: 1 }), shown = make("output", { for: "step" });
  const field = make("span", { class: "steps" }, make("label", { for: "step" }, "After step"), slider, shown);
  let steps = [];
  slider.addEventListener("input", () => session.update({ model: steps[slider.value].name }));
  session.listen(({ model }) => {
    const [, run] = STEP.exec(model) ?? [];
    steps = served.map(({ name }) => STEP.exec(name)).filter((found) => found && found[1] === run)
      .map(([name, , step]) => ({ name, step: Number(step) })).sort((a, b) => a.step - b.step);
    field.hidden = steps.length < 2;
    if (field.hidden) return;
    slider.max = steps.length - 1;
    slider.value = steps.findIndex(({ name }) => name === model);
    shown.textContent = steps[slider.value].step.toLocaleString("en");
    slider.setAttribute("aria-valuetext", `step ${shown.textContent}`);
  });
  return field;
}
