// A panel of the page as a picture: a copy of its elements with the page's style inside an SVG.
import { make } from "../dom.js";

const MARGIN = 16;
const LARGEST = 16_384; // pixels of a canvas's side that all browsers can draw
const SCROLLED = ".scroll, .grid-scroll, .tokens, .code";

export async function panelSvg(panel) {
  return new Blob([(await pictureOf(panel)).svg], { type: "image/svg+xml" });
}

export async function panelPng(panel) {
  const { svg, width, height } = await pictureOf(panel), scale = Math.min(2, LARGEST / Math.max(width, height));
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
  await image.decode();
  const canvas = Object.assign(document.createElement("canvas"), { width: scale * width, height: scale * height });
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  context.drawImage(image, 0, 0);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

async function pictureOf(panel) {
  const style = await styleOf(), { body, width, height } = laidOut(panel);
  const theme = document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  const escaped = style.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
  const svg = `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" data-theme="${theme === "dark" ? "dark" : "light"}">`
    + `<style>${escaped} :root { background: var(--page); max-width: none; }</style>`
    + `<foreignObject width="${width}" height="${height}">${new XMLSerializer().serializeToString(body)}</foreignObject></svg>`;
  return { svg, width, height };
}

// The rules that hold in the page: those for some widths would read the width of the picture.
async function styleOf() {
  const sheet = await new CSSStyleSheet().replace(await (await fetch("page/style.css")).text());
  const held = (rules) => [...rules].flatMap((rule) => (!rule.media ? rule.cssText : matchMedia(rule.media.mediaText).matches ? held(rule.cssRules) : []));
  return held(sheet.cssRules).join("\n").replaceAll("100vw", `${innerWidth}px`);
}

// A copy of a panel, as wide and high as it is when nothing in it is scrolled.
function laidOut(panel) {
  const body = make("div", { style: `margin:${MARGIN}px;font:15px/1.5 var(--sans);color:var(--text)` }, copyOf(panel));
  const holder = make("div", { style: "position:absolute;visibility:hidden" }, body);
  document.body.append(holder);
  const scrolled = [...body.querySelectorAll(SCROLLED)].filter((part) => part.checkVisibility()); // not in folded details
  const outside = () => Math.max(0, ...scrolled.map(({ scrollWidth, clientWidth }) => scrollWidth - clientWidth));
  let { width } = panel.getBoundingClientRect();
  body.style.width = `${width}px`;
  for (let i = 0, more = outside(); more && i < 8; i++, more = outside()) body.style.width = `${width += more}px`; // columns share what is added
  const { height } = body.getBoundingClientRect();
  holder.remove();
  return { body, width: Math.ceil(width) + 2 * MARGIN, height: Math.ceil(height) + 2 * MARGIN };
}

// A copy with canvases as images, fields with their present values, and all that is scrolled.
function copyOf(panel) {
  const copy = panel.cloneNode(true);
  const pairs = (selector) => [...panel.querySelectorAll(selector)].map((element, i) => [element, copy.querySelectorAll(selector)[i]]);
  for (const [field, other] of pairs("input, textarea, select")) {
    if (field.tagName === "TEXTAREA") other.textContent = field.value;
    else if (field.tagName === "SELECT") [...other.options].forEach((option, i) => option.toggleAttribute("selected", i === field.selectedIndex));
    else other.setAttribute("value", field.value);
  }
  for (const [canvas, other] of pairs("canvas")) {
    const image = document.createElement("img");
    image.src = canvas.toDataURL();
    image.style.cssText = `display:block;width:${canvas.clientWidth}px;height:${canvas.clientHeight}px;image-rendering:pixelated`;
    other.replaceWith(image);
  }
  for (const part of copy.querySelectorAll(SCROLLED)) part.style.cssText += ";overflow:visible;max-height:none;flex:none";
  copy.style.cssText += ";margin:0;max-width:none";
  return copy;
}
