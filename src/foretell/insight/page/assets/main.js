// Starts the page of a file, and shows the parts of a pass.
import { hasFeedforward, showAttentionValues, showCrossValues, showEncoderAttention, showEncoderFeedforward, showFeedforwardValues, showHeadOutputs } from "./block.js";
import { followUrl, goToLinked, makeChoice, onLink, readChoice } from "./choice.js";
import { showTheme } from "./colors.js";
import { showContributions } from "./contributions.js";
import { readFile } from "./data.js";
import { byId, fill, leave, make } from "./dom.js";
import { showNeurons } from "./feedforward.js";
import { count } from "./format.js";
import { showEmbedding, showFormulas } from "./formulas.js";
import { showGrid, showMap } from "./heads.js";
import { showLearning } from "./learning.js";
import { showLens, showLensMap } from "./lens.js";
import { showMemory } from "./memory.js";
import { readSettings, showHere, showNext } from "./next.js";
import { showOutcome } from "./outcomes.js";
import { showArcs, showRow } from "./row.js";
import { showSeries } from "./series.js";
import { showSizes, showVectors } from "./stream.js";
import { showTerms } from "./terms.js";
import { showTokens, showWhere } from "./tokens.js";

// The parts of each section of the page, in the order in which a live page asks for their numbers
export const PARTS = {
  "where": [showWhere],
  "text-section": [showTokens],
  "series-section": [showSeries],
  "outcome-section": [showOutcome],
  "next-section": [showNext],
  "here-section": [showHere],
  "attention-section": [showMap, showGrid, showArcs],
  "embedding-section": [showEmbedding],
  "head-section": [showRow, showTerms, showAttentionValues, showHeadOutputs],
  "memory-section": [showMemory, showCrossValues, showEncoderAttention, showEncoderFeedforward],
  "feedforward-section": [showNeurons, showFeedforwardValues],
  "stream-section": [showSizes, showVectors],
  "lens-section": [showLensMap, showLens],
  "contributions-section": [showContributions],
  "learning-section": [showLearning],
  "formulas-section": [showFormulas],
};

export const shown = {}; // data and choice, for the browser's console and the tests

// Sections of what some models lack
const LACKING = {
  "series-section": (data) => !data.hasLevels,
  "outcome-section": (data) => !data.outcomes,
  "memory-section": (data) => !data.memory,
  "feedforward-section": (data) => !hasFeedforward(data),
  "contributions-section": (data) => !data.hasContributions,
  "learning-section": (data) => !data.canLearn || !data.last,
};

// Begins to show a pass, with the choice of the URL: ends the listeners of the last one.
export function begin(data) {
  leave();
  const choice = makeChoice(data);
  Object.assign(shown, { data, choice });
  followUrl(data, choice);
  showFacts(data);
  showTitles(data);
  for (const [id, isLacking] of Object.entries(LACKING)) byId(id).hidden = isLacking(data);
  return choice;
}

// What a link names that the page cannot show, in words.
export const linkProblem = () => [shown.choice.problem, readSettings()].filter(Boolean).join(" ");

export async function start() {
  showTheme();
  if (typeof DecompressionStream === "undefined") {
    return showProblem("This browser cannot read the packed numbers of this page: DecompressionStream is missing. Browsers since 2023 have it.");
  }
  try {
    performance.mark("begun");
    const data = await readFile();
    performance.mark("read");
    if (!Object.keys(data.choice).length) data.choice = { token: inTheMiddle(data) };
    const choice = begin(data);
    showProblem(linkProblem());
    onLink(() => {
      readChoice(data, choice);
      showProblem(linkProblem());
      choice.announce(new Set(["settings"]));
      goToLinked();
    });
    for (const show of Object.values(PARTS).flat()) choice.show(show);
    showOmissions(data);
    goToLinked();
    document.documentElement.dataset.ready = "true";
    performance.mark("interactive");
    await data.openRest();
    choice.update();
    document.documentElement.dataset.complete = "true";
  } catch (error) {
    showProblem(`This page is damaged and cannot be shown: ${error.message}`);
    throw error;
  }
}

// The token on which a page in a file opens: in the middle of the text, so that both predictions differ.
const inTheMiddle = ({ last, firstQuery, lensFrom }) => Math.max(Math.ceil(last / 2), firstQuery, lensFrom);

export function showProblem(words) {
  const trouble = byId("trouble");
  trouble.textContent = words;
  trouble.hidden = !words;
}

function showFacts(data) {
  const { layers, heads, width, vocabulary } = data.shape;
  byId("facts").textContent = [
    count(data.tokens.length, "token"), count(layers, "layer"), `${count(heads, "head")} per layer`,
    `width ${width}`, `vocabulary ${vocabulary.toLocaleString("en")}`,
  ].join(" · ");
}

// The words of two sections for what the model reads and predicts.
function showTitles(data) {
  byId("text-title").textContent = data.hasLevels ? "The values as tokens" : data.memory ? "The translation as tokens" : `The ${data.outcomes?.example ?? "text"} as tokens`;
  byId("next-title").textContent = data.hasLevels ? "The next value" : data.outcomes ? "What the language model predicts" : "What comes next";
  byId("next-lead").hidden = !data.outcomes;
}

function showOmissions(data) {
  const shown = "This page shows the tokens, the logits after the last one, the values inside every layer (norms, queries, keys, values, attention weights, outputs of heads, feed-forward layers), the residual stream between the layers, the logit lens, and the direct contributions of heads and layers to logits.";
  const others = "It does not show the model’s weights, except single rows of the embeddings and the head. foretell explain --value shows them, and how each number is computed; foretell trace writes all numbers exactly.";
  const sentences = [data.cut.length ? `${shown} Of these, some are left out; see below.` : shown, others];
  fill(byId("footer"), make("p", {}, "The numbers are from one forward pass of the model, shown to four decimals. Positions, layers and heads count from 0."),
    ...sentences.map((sentence) => make("p", {}, sentence)), ...[...data.remarks, ...data.cut].map((sentence) => make("p", { class: "cut" }, sentence)));
}
