// Ways out of the page: the state as Python that gives the same numbers, as curl, as one file, and a panel as a picture.
import { button, byId, fill, make } from "../dom.js";
import { shown } from "../main.js";
import { changedSettings } from "../next.js";
import { addFoldedPanel } from "./panels.js";
import { panelPng, panelSvg } from "./picture.js";
import { asPython } from "./python.js";
import { askFile } from "./server.js";
import { busy, oncePerFrame, passFields, readAll, session } from "./session.js";

export function makeExport(served) {
  const holder = make("div", { id: "export-text" });
  const select = make("select", { id: "export-panel" });
  const panel = addFoldedPanel("export", "Take it along",
    make("div", { class: "editor-row" },
      button("As Python", () => showText(holder, "Python", asPython(session.state, shown.data, served.find(({ name }) => name === session.state.model)?.argument, changedSettings()))),
      button("As curl", () => showText(holder, "curl", asCurl())),
      button("As one file", saveFile),
      button("Print", async () => { await readAll(); print(); }),
      make("label", { for: "export-panel" }, "Panel"), select,
      button("SVG", () => savePanel(select, panelSvg, "svg")),
      button("PNG", () => savePanel(select, panelPng, "png"))),
    holder);
  byId("main").append(byId("export"));
  session.listen(() => fill(holder)); // it belongs to the state before
  for (const type of ["input", "click"]) byId("controls").addEventListener(type, () => fill(holder)); // settings of sampling
  const follow = oncePerFrame(() => panel.open && listPanels(select));
  panel.ontoggle = follow;
  new MutationObserver(follow).observe(byId("main"), { subtree: true, childList: true, characterData: true, attributeFilter: ["hidden"] });
}

function showText(holder, title, text) {
  const code = make("pre", { class: "code", id: "export-code", tabindex: 0, role: "region", "aria-label": title }, text);
  const copy = button("Copy", async () => { await navigator.clipboard.writeText(text); copy.textContent = "Copied"; });
  fill(holder, copy, code);
}

const quotedForShell = (text) => `'${text.replaceAll("'", "'\\''")}'`;

// A request for the logits after the text, as the page makes it.
export function asCurl() {
  const body = JSON.stringify({ ...passFields(), sections: ["logits", "losses"] });
  return `curl -sS ${quotedForShell(`${location.origin}/explore`)} -H 'content-type: application/json' -d ${quotedForShell(body)}\n`;
}

async function saveFile() {
  const choice = Object.fromEntries(["token", "key", "layer", "head", "sourceToken"].map((field) => [field, shown.choice[field]]));
  const { signal } = new AbortController(), name = shown.data.model.replace(/[^\w.-]+/g, "-");
  await saveMade(() => askFile("explore/page", { ...passFields(), choice }, signal), `${name}.html`, signal);
}

// Save a file when it is made; an error is shown.
const saveMade = (makeFile, name, signal = new AbortController().signal) => busy(signal, async () => save(await makeFile(), name), () => {});

// --- pictures

const titleOf = (card) => card.querySelector("h2, h3")?.firstChild?.textContent;
const placeOf = (card) => { const holder = card.closest("[id]"); return `${holder.id} ${[...holder.querySelectorAll(".card")].indexOf(card)}`; };

// Lists the panels that are shown, and returns them by their place: titles follow the choice, and cards of formulas are
// made again.
function listPanels(select) {
  const shownCards = [...document.querySelectorAll(".card:not(#value)")].filter((card) => card.offsetParent && titleOf(card));
  const panels = new Map(shownCards.map((card) => [placeOf(card), card])), before = select.value;
  const listed = make("select", {}, ...Array.from(panels, ([place, card]) => make("option", { value: place }, titleOf(card))));
  if (listed.innerHTML !== select.innerHTML) {
    fill(select, ...listed.children);
    if (panels.has(before)) select.value = before;
  }
  return panels;
}

async function savePanel(select, picture, ending) {
  const place = select.value;
  await readAll(); // a panel that has not been in view is empty
  const panel = listPanels(select).get(place);
  if (!panel) return; // it is gone, and the list shows another
  const name = titleOf(panel).toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "");
  return saveMade(() => picture(panel), `${name || "panel"}.${ending}`);
}

function save(blob, name) {
  const url = URL.createObjectURL(blob);
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
