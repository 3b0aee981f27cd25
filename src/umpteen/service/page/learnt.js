// What people have taught the model: the lessons, newest first, shown to whoever has the token.

import * as api from "./api.js";
import { at, el, sayOrHide } from "./dom.js";
import { count, plural, time } from "./format.js";
import { told } from "./latest.js";
import { undo } from "./learning.js";
import { service } from "./service.js";
import { withToken } from "./token.js";

const MOST = 50;

export function start() {
  const list = at("learnt");
  service.addEventListener("model", () => (list.hidden = !service.model.editable));
  service.addEventListener("learnt", () => list.open && load());
  list.addEventListener("toggle", () => list.open && load());
  at("unlearn").addEventListener("click", async ({ target, detail }) => {
    if (detail > 1) return; // the second half of a double click
    target.disabled = true;
    await undo();
    target.disabled = false;
  });
}

async function load() {
  try {
    const found = await withToken((token) => api.examples(MOST, token));
    if (found === null) return (at("learnt").open = false);
    sayOrHide(at("learnt-trouble"), "");
    return render(found);
  } catch (error) {
    if (error.passes === undefined) throw error;
    return sayOrHide(at("learnt-trouble"), told(error, null));
  }
}

function render({ count: all, examples }) {
  at("unlearn").hidden = all === 0;
  const left = all - examples.length;
  sayOrHide(at("learnt-said"), all === 0 ? "Nothing yet." : left ? `${plural(all, "text")}, of which the last ${count(examples.length)} are shown.` : "");
  at("lessons").replaceChildren(...examples.map(({ text, labels, wrong, time: when, note }) => el(
    "li",
    {},
    el("span", { class: "name" }, text),
    el("span", { class: "keys" }, labels.map((key) => el("span", { class: "key right" }, `✓ ${key}`)), wrong.map((key) => el("span", { class: "key wrong" }, `✗ ${key}`))),
    el("span", { class: "soft small" }, [time(when), note].filter(Boolean).join(" · ")),
  )));
}
