// Light or dark: as the system prefers, or as chosen here. Colours are variables of console.css.

import { effect, signal } from "./vendor/console.js";

const KEY = "millrace-theme";
const NEXT = { auto: "light", light: "dark", dark: "auto" };
const stored = localStorage.getItem(KEY);

export const theme = signal(stored in NEXT ? stored : "auto");
/** Changes whenever colours may have: what is painted on a canvas reads it. */
export const painted = signal(0);

export function turnTheme() {
  theme.value = NEXT[theme.value];
  localStorage.setItem(KEY, theme.value);
}

effect(() => {
  document.documentElement.dataset.theme = theme.value;
  painted.value = performance.now();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  painted.value = performance.now();
});

/** A colour of the present theme, for a canvas: a variable is computed only where it is used. */
export function colour(name) {
  const probe = document.createElement("i");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}
