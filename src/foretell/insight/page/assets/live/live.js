// Starts the live page: the state of the URL, or a first text for the first model.
import { showTheme } from "../colors.js";
import { byId } from "../dom.js";
import { PARTS, showProblem } from "../main.js";
import { makeChanges, showChanges, showHeadChange } from "./changes.js";
import { makeCompare, showCompare } from "./compare.js";
import { FIRST, linkOf, showEditor, translated } from "./editor.js";
import { makeExport } from "./export.js";
import { makePatchMap, showPatchMap } from "./patch.js";
import { models } from "./server.js";
import { readUrl, session, watchParts } from "./session.js";
import { showTour } from "./tour.js";
import { makeValuePanel } from "./value.js";

async function start() {
  showTheme();
  try {
    const { models: served } = await models();
    showEditor(served);
    byId("next-section").after(byId("live-panels")); // a change is next to the prediction
    makeChanges();
    makePatchMap();
    makeCompare(served.filter((model) => model.reads !== "source").map(({ name }) => name));
    makeExport();
    makeValuePanel();
    PARTS["attention-section"].push(showHeadChange);
    Object.assign(PARTS, { changes: [showChanges], patch: [showPatchMap], compare: [showCompare], tour: [showTour] });
    watchParts();
    const [{ name, examples: [example] }] = served;
    if (!location.hash && example) history.replaceState(null, "", linkOf(name, example));
    const given = readUrl(), { reads } = served.find((model) => model.name === (given.model ?? name)) ?? served[0];
    await session.update(await translated({ model: name, ...FIRST[reads], ...given }));
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
