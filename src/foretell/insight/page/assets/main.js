// Reads the page's data, makes the one choice that all parts share, and starts every part.
import { readData } from "page/data.js";
import { makeChoice } from "page/choice.js";
import { followAddress } from "page/address.js";
import { showTheme } from "page/theme.js";
import { showWhere } from "page/where.js";
import { showTokens } from "page/tokens.js";
import { showNext } from "page/next.js";
import { showHere } from "page/here.js";
import { showGrid } from "page/grid.js";
import { showMap } from "page/map.js";
import { showArcs } from "page/arcs.js";
import { showRow } from "page/row.js";
import { showSizes } from "page/sizes.js";
import { showVectors } from "page/vectors.js";
import { showLens } from "page/lens.js";
import { showFormulas } from "page/formulas.js";
import { count } from "page/format.js";
import { at, fill, make } from "page/dom.js";

const PARTS = [
  showWhere, showTokens, showMap, showGrid, showArcs, showRow, showNext, showHere,
  showSizes, showVectors, showLens, showFormulas,
];

export const shown = {}; // the data and the choice, for whoever looks into the page from a console

export async function start() {
  showTheme();
  if (typeof DecompressionStream === "undefined") {
    return complain("This browser cannot open the packed numbers of this page (DecompressionStream is missing). Any browser since 2023 can.");
  }
  try {
    performance.mark("begun");
    const data = await readData();
    performance.mark("read");
    const choice = makeChoice(data);
    Object.assign(shown, { data, choice });
    followAddress(choice);
    showFacts(data);
    for (const show of PARTS) show(data, choice);
    choice.announce();
    document.documentElement.dataset.ready = "true";
    performance.mark("interactive");
    await data.openRest();
    choice.announce();
    document.documentElement.dataset.complete = "true";
  } catch (error) {
    complain(`This page is damaged and cannot be shown: ${error.message}`);
    throw error;
  }
}

function complain(words) {
  const trouble = at("trouble");
  trouble.textContent = words;
  trouble.hidden = false;
}

function showFacts(data) {
  const { layers, heads, width, vocabulary } = data.shape;
  at("facts").textContent = [
    count(data.tokens.length, "token"), count(layers, "layer"), `${count(heads, "head")} a layer`,
    `width ${width}`, `vocabulary ${vocabulary.toLocaleString("en")}`,
  ].join(" · ");
  const said = data.cut.length ? data.cut : ["Nothing was left out of this page."];
  fill(at("footer"), make("p", {}, "Numbers are those of one pass of the model, shown to four decimals. Positions, layers and heads count from 0."),
    ...said.map((sentence) => make("p", { class: data.cut.length ? "cut" : "" }, sentence)));
}
