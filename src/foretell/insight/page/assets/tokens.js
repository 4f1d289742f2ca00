// The text as tokens. One is chosen; the others are tinted by how much it attends to them in the chosen head.
import { at, fill, make } from "page/dom.js";
import { inkOn, weightColor } from "page/colors.js";
import { four, named, quoted, visible } from "page/format.js";
import { onArrows } from "page/keys.js";
import { onTheme } from "page/theme.js";
import { firstKey, isKept, row } from "page/weights.js";

export function showTokens(data, choice) {
  const holder = at("tokens");
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

  const tint = () => {
    const from = choice.shownToken();
    const weights = row(data, choice.layer, choice.head, from);
    const start = firstKey(data, choice.layer, from);
    chips.forEach((chip, i) => {
      const weight = i >= start && i <= from ? (weights[i - start] ?? 0) / 10000 : 0;
      chip.style.backgroundColor = weight > 0 ? weightColor(weight) : "";
      chip.style.color = weight > 0 ? inkOn(weight) : "";
      chip.title = `${named(data, i)}${i <= from ? `: ${four(weight)}` : ""}`;
    });
    at("tokens-legend").textContent = isKept(data, from)
      ? `Tint: how much ${named(data, from)} attends to each token in layer ${choice.layer}, head ${choice.head}.`
      : `The attention of ${named(data, from)} is not in this page.`;
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

// Scrolls the holder alone; the page stays where it is.
function bringIntoSight(holder, chip) {
  const inside = chip.getBoundingClientRect(), around = holder.getBoundingClientRect();
  if (inside.top < around.top) holder.scrollTop -= around.top - inside.top + 8;
  else if (inside.bottom > around.bottom) holder.scrollTop += inside.bottom - around.bottom + 8;
}
