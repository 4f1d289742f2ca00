// Making and finding elements.
const SVG = "http://www.w3.org/2000/svg";

export const at = (id) => document.getElementById(id);

export function make(tag, attributes = {}, ...children) {
  return dress(document.createElement(tag), attributes, children);
}

export function draw(tag, attributes = {}, ...children) {
  return dress(document.createElementNS(SVG, tag), attributes, children);
}

function dress(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== undefined && value !== null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

// Its words stay in sight where the table is wider than the screen.
export const caption = (words) => make("caption", {}, make("span", {}, words));

export function fill(element, ...children) {
  element.replaceChildren(...children);
  return element;
}

// A canvas as large as its place in the page, in the screen's own pixels; drawing is in CSS pixels.
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
  new ResizeObserver(() => {
    const width = Math.floor(element.clientWidth);
    if (width !== known && width > 0) { known = width; redraw(width); }
  }).observe(element);
}
