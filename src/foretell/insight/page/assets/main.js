// Starts the page: reads the data, creates the shared choice, and shows every part.
import { followUrl, makeChoice } from "page/choice.js";
import { showTheme } from "page/colors.js";
import { readData } from "page/data.js";
import { byId, fill, make } from "page/dom.js";
import { count } from "page/format.js";
import { showFormulas } from "page/formulas.js";
import { showGrid, showMap } from "page/heads.js";
import { showMemory } from "page/memory.js";
import { showHere, showNext } from "page/next.js";
import { showArcs, showRow } from "page/row.js";
import { showLens, showSizes, showVectors } from "page/stream.js";
import { showTokens, showWhere } from "page/tokens.js";

const PARTS = [
  showWhere, showTokens, showMap, showGrid, showArcs, showRow, showNext, showHere, showMemory,
  showSizes, showVectors, showLens, showFormulas,
];

export const shown = {}; // data and choice, for the browser's console and the tests

export async function start() {
  showTheme();
  if (typeof DecompressionStream === "undefined") {
    return showProblem("This browser cannot read the packed numbers of this page: DecompressionStream is missing. Browsers since 2023 have it.");
  }
  try {
    performance.mark("begun");
    const data = await readData();
    performance.mark("read");
    const choice = makeChoice(data);
    Object.assign(shown, { data, choice });
    followUrl(choice);
    showFacts(data);
    for (const show of PARTS) show(data, choice);
    choice.announce();
    document.documentElement.dataset.ready = "true";
    performance.mark("interactive");
    await data.openRest();
    choice.announce();
    document.documentElement.dataset.complete = "true";
  } catch (error) {
    showProblem(`This page is damaged and cannot be shown: ${error.message}`);
    throw error;
  }
}

function showProblem(words) {
  const trouble = byId("trouble");
  trouble.textContent = words;
  trouble.hidden = false;
}

function showFacts(data) {
  const { layers, heads, width, vocabulary } = data.shape;
  byId("facts").textContent = [
    count(data.tokens.length, "token"), count(layers, "layer"), `${count(heads, "head")} per layer`,
    `width ${width}`, `vocabulary ${vocabulary.toLocaleString("en")}`,
  ].join(" · ");
  const shown = "This page shows the tokens, the logits after the last one, the residual stream between the layers, queries, keys and attention weights of every head, and the logit lens.";
  const others = "It does not show value vectors, the numbers inside feed-forward layers and norms, or the model’s weights, except single rows of the embeddings and the head. foretell trace and foretell explain --value show them.";
  const sentences = [data.cut.length ? `${shown} Of these, some are left out; see below.` : shown, others];
  fill(byId("footer"), make("p", {}, "The numbers are from one forward pass of the model, shown to four decimals. Positions, layers and heads count from 0."),
    ...sentences.map((sentence) => make("p", {}, sentence)), ...data.cut.map((sentence) => make("p", { class: "cut" }, sentence)));
}
