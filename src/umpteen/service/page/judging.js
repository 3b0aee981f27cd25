// What a person says of a text's labels: right, wrong, or missing. Nothing counts before it is learnt.

import * as api from "./api.js";
import { el, say, sayOrHide } from "./dom.js";
import { plural } from "./format.js";
import { Latest, told } from "./latest.js";

const PAUSE = 150; // ms
const FOUND = 6; // labels that a search offers

/** A text with the labels that were said to be right and to be wrong; `changed` is called after each word of it. */
export class Judgement {
  right = new Map(); // key → text
  wrong = new Map();

  constructor(text, changed) {
    Object.assign(this, { text, changed, buttons: new Map() });
  }

  get isEmpty() {
    return this.right.size + this.wrong.size === 0;
  }

  /** As the service takes it. */
  get example() {
    return { text: this.text, labels: [...this.right.keys()], wrong: [...this.wrong.keys()] };
  }

  /** Says it of a label, or takes it back if it was said already. */
  say(side, { key, text }) {
    const was = this[side].has(key);
    this.right.delete(key);
    this.wrong.delete(key);
    if (!was) this[side].set(key, text);
    this.#show();
  }

  clear() {
    this.right.clear();
    this.wrong.clear();
    this.#show();
  }

  /** The two buttons beside a predicted label; always the same ones. */
  marks(label) {
    if (!this.buttons.has(label.key)) {
      const button = (side, sign, name) => el("button", { type: "button", class: side, "aria-pressed": "false", "aria-label": `${name}: ${label.text}`, title: name, onclick: () => this.say(side, label) }, sign);
      this.buttons.set(label.key, el("span", { class: "judged" }, button("right", "✓", "Right"), button("wrong", "✗", "Wrong")));
    }
    return this.buttons.get(label.key);
  }

  #show() {
    for (const [key, pair] of this.buttons) {
      for (const side of ["right", "wrong"]) pair.querySelector(`.${side}`).setAttribute("aria-pressed", String(this[side].has(key)));
    }
    this.changed();
  }
}

/** Where a missing label is found and added, and the judgement is learnt; `predicted()` has the keys that have marks. */
export function box(judgement, { predicted, learn, name = "Learn this", more = [] }) {
  const added = el("ul", { class: "added", "aria-label": "Labels that were missing" });
  const offers = el("ul", { class: "offers", hidden: true, "aria-label": "Labels to add" });
  const search = el("input", { type: "search", placeholder: "Add a missing label", "aria-label": "Search a label that is missing", autocomplete: "off", spellcheck: "false" });
  const problem = el("p", { class: "trouble", role: "alert", hidden: true });
  const count = el("span", { class: "soft small", role: "status" });
  const button = el("button", { type: "button", class: "main", disabled: true }, name);
  const clear = el("button", { type: "button", class: "plain", hidden: true, onclick: () => judgement.clear() }, "Forget");

  const asking = new Latest({
    send: (words, signal) => api.labels({ search: words, start: 0, count: FOUND, retired: false }, signal),
    answered: ({ labels }, words) => {
      const offered = labels.map((label) => el("li", {}, el("button", { type: "button", onclick: () => add(label) }, label.text)));
      offers.replaceChildren(...(offered.length ? offered : [el("li", { class: "soft small" }, `No label has “${words}” in its text or key.`)]));
      offers.hidden = false;
    },
    failed: (error, seconds) => sayOrHide(problem, told(error, seconds)),
  });
  const close = () => {
    asking.cancel();
    offers.hidden = true;
  };
  const add = (label) => {
    if (!judgement.right.has(label.key)) judgement.say("right", label);
    search.value = "";
    close();
    search.focus();
  };
  search.addEventListener("input", () => (search.value.trim() ? asking.ask(search.value.trim(), PAUSE) : close()));
  search.addEventListener("keydown", (event) => {
    if (event.key === "Escape") close();
    if (event.key === "Enter") offers.hidden || offers.querySelector("button")?.click();
  });
  button.addEventListener("click", async () => {
    button.disabled = true;
    sayOrHide(problem, "");
    try {
      if (await learn(judgement.example)) return;
    } catch (error) {
      if (error.passes === undefined) throw error;
      sayOrHide(problem, told(error, null));
    }
    update();
  });

  function update() {
    const keys = predicted();
    added.replaceChildren(...[...judgement.right].filter(([key]) => !keys.has(key)).map(([key, text]) => el("li", {}, el("span", {}, text), el("button", { type: "button", class: "plain", "aria-label": `Take back ${text}`, onclick: () => judgement.say("right", { key, text }) }, "✕"))));
    button.disabled = clear.hidden = judgement.isEmpty;
    const { right, wrong } = judgement;
    say(count, judgement.isEmpty ? "" : [right.size ? `${right.size} right` : "", wrong.size ? `${wrong.size} wrong` : ""].filter(Boolean).join(", "));
  }

  const element = el("div", { class: "judging" }, added, el("div", { class: "searching" }, search, offers), el("div", { class: "teach" }, button, ...more, count, clear), problem);
  update();
  return { element, update };
}

/** What was learnt, in a few words. */
export const inWords = ({ labels, wrong }) => [labels.length ? plural(labels.length, "right label") : "", wrong.length ? plural(wrong.length, "wrong one") : ""].filter(Boolean).join(", ");
