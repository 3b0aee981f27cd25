// Predicted labels as bars. A label keeps its element while it stays in the list, so that its bar moves.

import { el, say, sayOrHide } from "./dom.js";
import { percent, score } from "./format.js";

const elements = new Map(); // key → its <li>

/**
 * Fills the list; `share(label)` is how much of the bar is full, from 0 to 1, `before` has what labels were worth
 * before something was learnt, if it was, and `marks(label)` is what judges a label, or null.
 */
export function show(list, labels, { share, before, marks }) {
  const old = new Map(elements);
  elements.clear();
  labels.forEach((label, position) => {
    const item = old.get(label.key) ?? made(label.key);
    elements.set(label.key, item);
    fill(item, label, share(label));
    sayOrHide(item.querySelector(".before"), told(before, label));
    item.classList.toggle("moved", !item.querySelector(".before").hidden);
    const judged = marks(label);
    if (item.querySelector(".judged") !== judged) item.querySelector(".judged").replaceWith(judged ?? el("span", { class: "judged" }));
    if (list.children[position] !== item) list.insertBefore(item, list.children[position] ?? null);
  });
  while (list.children.length > labels.length) list.lastElementChild.remove();
}

function made(key) {
  return el(
    "li",
    { "data-key": key },
    el("button", { type: "button", class: "text", "aria-expanded": "false" }, el("span", {}), "\u2002", el("span", { class: "key" }, key)),
    el("span", { class: "judged" }),
    el("span", { class: "worth" }, el("span", { class: "value" }), el("span", { class: "before", hidden: true })),
    el("span", { class: "bar", "aria-hidden": "true" }, el("span", {})),
  );
}

function fill(item, label, share) {
  say(item.querySelector(".text > span"), label.text);
  say(item.querySelector(".value"), value(label));
  item.querySelector(".bar > span").style.setProperty("--share", Math.min(1, Math.max(0, share)).toFixed(4));
}

/** How a label has changed by what was learnt. */
function told(before, label) {
  if (!before) return "";
  const was = before.get(label.key);
  if (was === undefined) return "new";
  return was === value(label) ? "" : `was ${was}`;
}

export const value = (label) => (label.probability === null || label.probability === undefined ? score(label.score) : percent(label.probability));
