// The choice of token, layer and head: the bar at the top, and the text as a row of tokens.
import { inkOn, onTheme, weightColor } from "./colors.js";
import { firstKey, isKept, weightRow } from "./data.js";
import { button, byId, fill, fresh, listen, make, onArrows } from "./dom.js";
import { four, marksIn, named, quoted, short, visible } from "./format.js";

// The bar that stays in sight, with the chosen token, layer and head.
export function showWhere(data, choice) {
  const step = (name, by, words) => button(by < 0 ? "‹" : "›", () => choice.set({ [name]: choice[name] + by }), { class: "step", "aria-label": words });
  const options = (size, noun) => Array.from({ length: size }, (_, i) => make("option", { value: i }, `${noun} ${i}`));

  const token = make("select", { id: "token-select", onchange: (event) => choice.set({ token: Number(event.target.value) }) },
    ...data.tokens.map(({ text }, i) => make("option", { value: i }, `${i}  ${short(text)}`)));
  const layer = make("select", { id: "layer-select", onchange: (event) => choice.set({ layer: Number(event.target.value) }) },
    ...options(data.shape.layers, "layer"));
  const head = make("select", { id: "head-select", onchange: (event) => choice.set({ head: Number(event.target.value) }) },
    ...options(data.shape.heads, "head"));

  fill(byId("where-token"), make("label", { for: "token-select" }, "Token"), step("token", -1, "Previous token"), token, step("token", 1, "Next token"));
  fill(byId("where-layer"), make("label", { for: "layer-select" }, "Layer"), layer);
  fill(byId("where-head"), make("label", { for: "head-select" }, "Head"), head);
  choice.listen(() => {
    token.value = choice.token;
    layer.value = choice.layer;
    head.value = choice.head;
    token.title = quoted(data.tokens[choice.token].text);
  });
}

// The tokens of the text, tinted by the attention weights of the chosen token in the chosen head.
export function showTokens(data, choice) {
  const holder = fresh("tokens");
  const chips = data.tokens.map(({ text }, i) => make("button", {
    type: "button", role: "radio", class: text.startsWith("<0x") || text.startsWith("<|") ? "token odd" : "token",
    "data-position": i, "aria-label": `${quoted(text)}, position ${i}`,
  }, make("bdi", {}, visible(text))));
  const pieces = chips.flatMap((chip, i) => (data.tokens[i].text.includes("\n") ? [chip, make("span", { class: "line" })] : [chip]));
  fill(holder, ...pieces);

  const position = (event) => event.target.closest?.("[data-position]")?.dataset.position;
  const choose = (token) => { choice.set({ token }); chips[choice.token].focus({ preventScroll: false }); };
  holder.addEventListener("click", (event) => position(event) !== undefined && choose(Number(position(event))));
  holder.addEventListener("pointerover", (event) => {
    if (position(event) !== undefined && event.pointerType === "mouse") choice.point({ token: Number(position(event)) });
  });
  holder.addEventListener("pointerleave", () => choice.point(null));
  onArrows(holder, (columns, rows) => choose(choice.token + columns + rows), (first) => choose(first ? 0 : data.last));

  // Before anything has the focus, the arrow keys choose a token, too
  listen(document, "keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey || document.activeElement !== document.body) return;
    choice.set({ token: choice.token + by });
    event.preventDefault();
  });

  const marks = marksIn(data.tokens.map(({ text }) => text));
  const tint = () => {
    const from = choice.shownToken();
    const weights = weightRow(data, choice.layer, choice.head, from);
    const start = firstKey(data, choice.layer, from);
    chips.forEach((chip, i) => {
      const weight = i >= start && i <= from ? (weights[i - start] ?? 0) / 10000 : 0;
      chip.style.backgroundColor = weight > 0 ? weightColor(weight) : "";
      chip.style.color = weight > 0 ? inkOn(weight) : "";
      chip.title = `${named(data, i)}${i <= from ? `: ${four(weight)}` : ""}`;
    });
    byId("tokens-legend").textContent = `${isKept(data, from)
      ? `Tint: attention weights of ${named(data, from)}, layer ${choice.layer}, head ${choice.head}.`
      : `The attention of ${named(data, from)} is not in this page.`} ${marks}`;
  };
  choice.listen((changed) => {
    if (changed.has("token")) {
      chips.forEach((chip, i) => {
        chip.setAttribute("aria-checked", i === choice.token);
        chip.tabIndex = i === choice.token ? 0 : -1;
      });
      bringIntoSight(holder, chips[choice.token]);
    }
    tint();
  });
  onTheme(tint);
}

// Scrolls the holder only, not the page.
export function bringIntoSight(holder, chip) {
  const inside = chip.getBoundingClientRect(), around = holder.getBoundingClientRect();
  if (inside.top < around.top) holder.scrollTop -= around.top - inside.top + 8;
  else if (inside.bottom > around.bottom) holder.scrollTop += inside.bottom - around.bottom + 8;
}
