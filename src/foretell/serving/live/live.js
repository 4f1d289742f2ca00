// Starts the live page: the state of the URL, or a first text for the first model.
import { onLink } from "../choice.js";
import { showTheme } from "../colors.js";
import { PARTS, showProblem } from "../main.js";
import { makeChanges, showChanges, showHeadChange } from "./changes.js";
import { makeCompare, showCompare } from "./compare.js";
import { showEditor, showTranslated, stateOfUrl } from "./editor.js";
import { makeExport } from "./export.js";
import { makePatchMap, showPatchMap } from "./patch.js";
import { models } from "./server.js";
import { watchParts } from "./session.js";
import { showTour } from "./tour.js";
import { makeValuePanel } from "./value.js";

async function start() {
  showTheme();
  try {
    const { models: served } = await models();
    showEditor(served);
    makeChanges();
    makePatchMap();
    makeCompare(served);
    makeExport(served);
    makeValuePanel();
    PARTS["attention-section"].push(showHeadChange);
    Object.assign(PARTS, { changes: [showChanges], patch: [showPatchMap], compare: [showCompare], tour: [showTour] });
    watchParts();
    const follow = () => showTranslated(stateOfUrl(served));
    onLink(follow);
    await follow();
  } catch (error) {
    showProblem(error.message);
    throw error;
  }
}

start();
