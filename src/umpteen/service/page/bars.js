// Predicted labels as bars. A label keeps its element while it stays in the list, so that its bar moves.

import { el, say } from "./dom.js";
import { percent, score } from "./format.js";

const elements = new Map(); // key → its <li>

/** Fills the list; `share(label)` is how much of the bar is full, from 0 to 1. */
export function show(list, labels, share) {
  const before = new Map(elements);
  elements.clear();
  labels.forEach((label, position) => {
    const item = before.get(label.key) ?? made(label.key);
    elements.set(label.key, item);
    fill(item, label, share(label));
    if (list.children[position] !== item) list.insertBefore(item, list.children[position] ?? null);
  });
  while (list.children.length > labels.length) list.lastElementChild.remove();
}

function made(key) {
  return el(
    "li",
    {},
    el(
      "a",
      { class: "text", href: `#/labels?${new URLSearchParams({ search: key })}` },
      el("span", {}),
      "\u2002",
      el("span", { class: "key" }, key),
    ),
    el("span", { class: "value" }),
    el("span", { class: "bar", "aria-hidden": "true" }, el("span", {})),
  );
}

function fill(item, label, share) {
  say(item.querySelector(".text > span"), label.text);
  say(item.querySelector(".value"), value(label));
  item.querySelector(".bar > span").style.setProperty("--share", Math.min(1, Math.max(0, share)).toFixed(4));
}

export const value = (label) => (label.probability === null || label.probability === undefined ? score(label.score) : percent(label.probability));
