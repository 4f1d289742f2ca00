// Ways out of the page: the state as Python that gives the same numbers, as curl, as one file, and a panel as a picture.
import { button, byId, fill, make } from "../dom.js";
import { shown } from "../main.js";
import { addFoldedPanel } from "./panels.js";
import { panelPng, panelSvg } from "./picture.js";
import { asPython } from "./python.js";
import { askFile } from "./server.js";
import { busy, passFields, readAll, session } from "./session.js";

export function makeExport(served) {
  const holder = make("div", { id: "export-text" });
  const panel = make("select", { id: "export-panel", onfocus: () => listPanels(panel) });
  addFoldedPanel("export", "Take it along",
    make("div", { class: "editor-row" },
      button("As Python", () => showText(holder, "Python", asPython(session.state, shown.data, served.find(({ name }) => name === session.state.model)?.argument))),
      button("As curl", () => showText(holder, "curl", asCurl())),
      button("As one file", saveFile),
      button("Print", async () => { await readAll(); print(); }),
      make("label", { for: "export-panel" }, "Panel"), panel,
      button("SVG", () => savePanel(panel, panelSvg, "svg")),
      button("PNG", () => savePanel(panel, panelPng, "png"))),
    holder);
  byId("main").append(byId("export"));
  session.listen(() => fill(holder)); // it belongs to the state before
  listPanels(panel);
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
const titled = () => [...document.querySelectorAll(".card:not(#value)")].filter((card) => card.offsetParent && titleOf(card));

// The panels that are shown now: more are when the page was read further.
function listPanels(select) {
  const before = select.value, titles = titled().map(titleOf);
  fill(select, ...titles.map((title) => make("option", {}, title)));
  if (titles.includes(before)) select.value = before;
}

const chosenPanel = (select) => titled().find((card) => titleOf(card) === select.value) ?? byId("export");

function savePanel(select, picture, ending) {
  const panel = chosenPanel(select);
  const name = select.value.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "");
  return saveMade(() => picture(panel), `${name || "panel"}.${ending}`);
}

function save(blob, name) {
  const url = URL.createObjectURL(blob);
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
