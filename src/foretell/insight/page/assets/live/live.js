// Starts the live page: the state of the URL, or a first text for the first model.
import { showTheme } from "../colors.js";
import { byId, make } from "../dom.js";
import { PARTS, showProblem } from "../main.js";
import { makeChanges, showChanges, showHeadChange } from "./changes.js";
import { makeCompare, showCompare } from "./compare.js";
import { linkOf, showEditor } from "./editor.js";
import { makeExport } from "./export.js";
import { makePatchMap, showPatchMap } from "./patch.js";
import { models } from "./server.js";
import { readUrl, session, watchParts } from "./session.js";
import { showTour } from "./tour.js";
import { makeValuePanel } from "./value.js";

const TEXT = "The return value of the function is";

async function start() {
  showTheme();
  try {
    const { models: served, tasks } = await models();
    const left = tasks.length ? ` Not shown here, since they are trained for a task: ${tasks.join(", ")}; foretell explain and forecast write a page of one with --html.` : "";
    if (!served.length) throw new Error(`This server has no language model to explore.${left}`);
    byId("live").after(make("p", { class: "hint", id: "tasks", hidden: !left }, left));
    showEditor(served);
    byId("next-section").after(byId("live-panels")); // a change is next to the prediction
    makeChanges();
    makePatchMap();
    makeCompare(served.map(({ name }) => name));
    makeExport();
    makeValuePanel();
    PARTS["attention-section"].push(showHeadChange);
    Object.assign(PARTS, { changes: [showChanges], patch: [showPatchMap], compare: [showCompare], tour: [showTour] });
    watchParts();
    const [{ name, examples: [example] }] = served;
    if (!location.hash && example) history.replaceState(null, "", linkOf(name, example));
    await session.update({ model: name, text: TEXT, ...readUrl() });
    addEventListener("hashchange", () => {
      const state = readUrl();
      if (Object.entries(state).some(([name, value]) => JSON.stringify(value) !== JSON.stringify(session.state[name]))) session.update(state);
    });
  } catch (error) {
    showProblem(error.message);
    throw error;
  }
}

start();
