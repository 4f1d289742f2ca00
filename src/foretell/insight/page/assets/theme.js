// Light or dark: as the system has it, unless asked otherwise.
import { at } from "page/dom.js";

const listeners = [];
const system = matchMedia("(prefers-color-scheme: dark)");

export const onTheme = (listener) => listeners.push(listener);
export const isDark = () => {
  const asked = document.documentElement.dataset.theme;
  return asked ? asked === "dark" : system.matches;
};

export function showTheme() {
  const tell = () => listeners.forEach((listener) => listener());
  system.addEventListener("change", tell);
  at("theme").value = "auto"; // some browsers keep the last answer when a page is loaded again
  at("theme").addEventListener("change", (event) => {
    if (event.target.value === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = event.target.value;
    tell();
  });
}
