// A panel of the page as a picture: a copy of its elements with the page's style inside an SVG.
const MARGIN = 16;

export async function panelSvg(panel) {
  return new Blob([await svgOf(panel)], { type: "image/svg+xml" });
}

export async function panelPng(panel) {
  const { width, height } = sizeOf(panel), scale = 2;
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(await svgOf(panel))}`;
  await image.decode();
  const canvas = Object.assign(document.createElement("canvas"), { width: scale * width, height: scale * height });
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  context.drawImage(image, 0, 0);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

function sizeOf(panel) {
  const { width, height } = panel.getBoundingClientRect();
  return { width: Math.ceil(width) + 2 * MARGIN, height: Math.ceil(height) + 2 * MARGIN };
}

async function svgOf(panel) {
  const { width, height } = sizeOf(panel), inner = width - 2 * MARGIN;
  const style = await (await fetch("page/style.css")).text();
  const theme = document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  const body = document.createElement("div");
  body.style.cssText = `width:${inner}px;margin:${MARGIN}px;font:15px/1.5 var(--sans);color:var(--text)`;
  body.append(copyOf(panel));
  const escaped = style.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" data-theme="${theme === "dark" ? "dark" : "light"}">`
    + `<style>${escaped} :root { background: var(--page); } section { margin-top: 0; }</style>`
    + `<foreignObject width="${width}" height="${height}">${new XMLSerializer().serializeToString(body)}</foreignObject></svg>`;
}

// A copy with canvases as images and fields with their present values; scrolled parts stay at their beginning.
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
  return copy;
}
