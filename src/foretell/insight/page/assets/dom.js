// Elements: creating, finding and filling them; canvas size, element width, arrow keys.

const CONTROLS = "a[href], button, input, select, textarea, summary, [tabindex]";
const SVG = "http://www.w3.org/2000/svg", MATHML = "http://www.w3.org/1998/Math/MathML";

export const byId = (id) => document.getElementById(id);

export function make(tag, attributes = {}, ...children) {
  return dress(document.createElement(tag), attributes, children);
}

export function draw(tag, attributes = {}, ...children) {
  return dress(document.createElementNS(SVG, tag), attributes, children);
}

export function math(tag, attributes = {}, ...children) {
  return dress(document.createElementNS(MATHML, tag), attributes, children);
}

// On a live page, numbers open: the content of an element with an address, from the address and its children.
// A table, or a card of formulas, is given to `prepare` when it is made, with all that is in it.
let openerOf = null, prepareNumbers = () => {};
export const setOpener = (make, prepare) => { openerOf = make; prepareNumbers = prepare; };

function dress(element, attributes, children) {
  const address = openerOf && element.localName !== "button" && attributes["data-address"];
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "style" && value) element.style.cssText = value; // an attribute would break the live page's policy
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== undefined && value !== null) element.setAttribute(name, value);
  }
  element.append(...(address ? [openerOf(address, children)] : children));
  if (element.matches("table, .card.formula")) prepareNumbers(element);
  return element;
}

// A button, of the plain kind unless it has another class.
export const button = (words, action, attributes = {}) => make("button", { type: "button", class: "plain", onclick: action, ...attributes }, words);

export const hint = (...words) => make("p", { class: "hint" }, ...words);

// A labelled part that scrolls, which the keyboard reaches. height: classes that limit it.
export const region = (label, content = [], height = "") => make("div", { class: `scroll ${height}`.trimEnd(), tabindex: 0, role: "region", "aria-label": label }, ...[content].flat());

// The head of a table, and the headings of its columns, which have numbers except the first few.
export const tableHead = (...cells) => make("thead", {}, make("tr", {}, ...cells));
export const heading = (name, isOfNumbers = false) => make("th", { scope: "col", class: isOfNumbers && "number" }, name);
export const headings = (names, numWords = 1) => names.map((name, i) => heading(name, i >= numWords));
// A cell with a number; address: of the number, or the attributes of one of another pass.
export const numberCell = (words, address) => make("td", { class: "number", ...(typeof address === "object" ? address : { "data-address": address }) }, words);
export const barHeading = () => make("td", { "aria-hidden": "true" });

// Terms with their numbers: [[term, number, attributes of the number]].
export const factList = (facts) => make("dl", { class: "compared" }, ...facts.map(([term, value, attributes]) => make("div", {}, make("dt", {}, term), make("dd", attributes, value))));

// A caption whose text stays in sight when the table is scrolled sideways.
export const caption = (text) => make("caption", {}, make("span", {}, text));

// A cell with a bar for a share from 0 to 1; the full width is 1. before: an earlier share, marked by a line.
export const bar = (share, before) => make("td", { class: "bar", "aria-hidden": "true" }, make("div", {}, make("span", { style: `width:${100 * share}%` }),
  ...(before === undefined ? [] : [make("i", { style: `left:${100 * before}%` })])));

// Replaces the content of an element; the focus stays at the same place in it.
export function fill(element, ...children) {
  const controls = () => [...element.querySelectorAll(CONTROLS)], focused = document.activeElement;
  const place = element !== focused && element.contains(focused) ? controls().indexOf(focused) : -1;
  element.replaceChildren(...children);
  if (place >= 0) controls().slice(0, place + 1).at(-1)?.focus({ preventScroll: true });
  return element;
}

// An element without its content and its listeners, for a part that is shown again.
export function fresh(id) {
  const element = byId(id).cloneNode(false);
  byId(id).replaceWith(element);
  return element;
}

// Listeners outside a part's elements. `leave` ends them before the parts are shown again.
let ends = [];
export const onLeave = (end) => ends.push(end);
export function leave() {
  for (const end of ends.splice(0)) end();
}
export function listen(target, type, listener) {
  target.addEventListener(type, listener);
  onLeave(() => target.removeEventListener(type, listener));
}

// Sizes a canvas in device pixels and returns a context that draws in CSS pixels.
export function fitCanvas(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

// Calls `redraw(width)` when the element's width changes.
export function onWidth(element, redraw) {
  let known = 0;
  const observer = new ResizeObserver(() => {
    const width = Math.floor(element.clientWidth);
    if (width !== known && width > 0) { known = width; redraw(width); }
  });
  observer.observe(element);
  onLeave(() => observer.disconnect());
}

const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

// Calls `move(columns, rows)` for an arrow key and `end(isFirst)` for Home and End, as in a radio group or grid. The
// browser does what the key does elsewhere if the function returns false.
export function onArrows(element, move, end) {
  element.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    let isMoved = false;
    if (MOVES[event.key]) isMoved = move(...MOVES[event.key]) !== false;
    else if (event.key === "Home" || event.key === "End") isMoved = end(event.key === "Home") !== false;
    if (isMoved) event.preventDefault();
  });
}
