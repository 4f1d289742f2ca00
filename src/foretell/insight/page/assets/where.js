// The bar that stays in sight: which token, layer and head the page shows, and how to change them.
import { at, fill, make } from "page/dom.js";
import { quoted, short } from "page/format.js";

export function showWhere(data, choice) {
  const step = (name, by, words) => make("button", {
    type: "button", class: "step", "aria-label": words, onclick: () => choice.set({ [name]: choice[name] + by }),
  }, by < 0 ? "‹" : "›");
  const options = (size, noun) => Array.from({ length: size }, (_, i) => make("option", { value: i }, `${noun} ${i}`));

  const token = make("select", { id: "token-select", onchange: (event) => choice.set({ token: Number(event.target.value) }) },
    ...data.tokens.map((one, i) => make("option", { value: i }, `${i}  ${short(one.text)}`)));
  const layer = make("select", { id: "layer-select", onchange: (event) => choice.set({ layer: Number(event.target.value) }) },
    ...options(data.shape.layers, "layer"));
  const head = make("select", { id: "head-select", onchange: (event) => choice.set({ head: Number(event.target.value) }) },
    ...options(data.shape.heads, "head"));

  fill(at("where-token"), make("label", { for: "token-select" }, "Token"), step("token", -1, "Token before"), token, step("token", 1, "Token after"));
  fill(at("where-layer"), make("label", { for: "layer-select" }, "Layer"), layer);
  fill(at("where-head"), make("label", { for: "head-select" }, "Head"), head);
  choice.listen(() => {
    token.value = choice.token;
    layer.value = choice.layer;
    head.value = choice.head;
    token.title = quoted(data.tokens[choice.token].text);
  });
}
