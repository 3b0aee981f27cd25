// What has just happened, told in passing at the foot of the page, with the way back where there is one.

import { at, el } from "./dom.js";

const SHOWN = 12_000; // ms
let fading = null;

/** Shows what was done to what; `undo`, if given, is called by a button. */
export function notice([verb, what], undo = null) {
  clearTimeout(fading);
  const text = el("span", {}, verb, what ? el("strong", {}, what) : null);
  const once = () => (at("notice").replaceChildren(), undo());
  at("notice").replaceChildren(text, ...(undo ? [el("button", { type: "button", onclick: once }, "Undo")] : []));
  fading = setTimeout(() => at("notice").replaceChildren(), SHOWN);
}

addEventListener("hashchange", () => at("notice").replaceChildren());
