// Why a text gets a label: hovering, focusing or tapping a label marks its words and shows what else spoke for it.

import * as api from "./api.js";
import { at, el } from "./dom.js";
import { percent, plural, score } from "./format.js";
import { Latest, told } from "./latest.js";
import { service } from "./service.js";

const PAUSE = 120; // ms a pointer rests on a label before it is asked about
const MOST = 8; // n-grams and texts that are listed
const FEW = 5; // words, which are marked in the text as well
const panel = at("why"); // held here: it may stand in a row that goes
const wide = matchMedia("(min-width: 820px)");
const known = new Map(); // "text\nkey" → explanation, of this version of the model
let text = null; // that the labels are of
let key = null; // that is explained

const asking = new Latest({
  send: (question, signal) => api.explain(question, signal),
  answered: (explanation, question) => {
    known.set(`${question.text}\n${question.key}`, explanation);
    if (question.text === text && question.key === key) render(explanation);
  },
  failed: (error, seconds) => place(el("p", { class: "trouble", role: "alert" }, told(error, seconds))),
});

export function start() {
  const list = at("results");
  const row = (event) => event.target.closest("#results > li")?.dataset.key;
  list.addEventListener("pointerover", (event) => event.pointerType === "mouse" && row(event) && explain(row(event), PAUSE));
  list.addEventListener("focusin", (event) => event.target.matches(".text:focus-visible") && explain(row(event), PAUSE));
  let open = null; // what was explained before this tap, whose focus may have asked already
  list.addEventListener("pointerdown", () => (open = panel.hidden ? null : key));
  list.addEventListener("click", (event) => {
    if (!event.target.closest(".text")) return;
    if (open === row(event) && event.detail && !wide.matches) forget(); // a second tap closes it
    else explain(row(event));
  });
  document.addEventListener("keydown", (event) => event.key === "Escape" && forget());
  at("text").addEventListener("scroll", () => (at("marks").scrollTop = at("text").scrollTop));
  wide.addEventListener("change", forget);
  for (const event of ["catalogue", "learnt"]) service.addEventListener(event, () => (known.clear(), forget()));
}

/** The text whose labels are shown from now on; null: none. */
export function about(asked) {
  if (asked === text) return;
  text = asked;
  known.clear();
  forget();
}

/** Nothing is explained any more. */
export function forget() {
  asking.cancel();
  key = null;
  expanded();
  panel.hidden = true;
  at("writing").append(panel);
  at("marks").replaceChildren();
}

function explain(wanted, delay = 0) {
  if (wanted === key || text === null) return;
  key = wanted;
  expanded();
  const found = known.get(`${text}\n${key}`);
  if (found) render(found);
  else asking.ask({ text, key }, delay);
}

function expanded() {
  for (const row of at("results").children) row.querySelector(".text").setAttribute("aria-expanded", String(row.dataset.key === key));
}

/** Beside the labels where there is room, else below the one it is about. */
function place(...content) {
  panel.replaceChildren(...content);
  panel.hidden = false;
  if (wide.matches) at("writing").append(panel);
  else [...at("results").children].find((row) => row.dataset.key === key)?.append(panel);
}

function render(explanation) {
  const { label, terms, words, method, ngrams, neighbours } = explanation;
  mark(words);
  place(
    el("h3", {}, "Why ", el("em", {}, label.split(": ")[0])),
    el("p", { class: "soft small" }, sum(explanation)),
    shares("What the score is made of", terms.map(({ name, score: share }) => [name, share])),
    shares("Words", strongest(words).slice(0, FEW).map(({ text: word, score: share }) => [word, share]), method === "exact" ? "Each word’s own part of the encoder’s score." : "What the encoder’s score loses without the word."),
    shares("Words and pairs that the ranker learnt", strongest(ngrams).map(({ text: ngram, score: share }) => [ngram, share])),
    similar(neighbours),
    el("p", { class: "small" }, el("a", { href: `#/labels?${new URLSearchParams({ search: explanation.key })}` }, "This label in the catalogue")),
  );
}

function sum({ score: whole, probability, is_candidate: near = true }) {
  const likely = probability === null || probability === undefined ? "" : `, a probability of ${percent(probability)}`;
  return `Score ${score(whole)}${likely}${near ? "." : "; too far down for the ranker to have had its say."}`;
}

const strongest = (parts = []) => [...parts].sort((one, two) => Math.abs(two.score) - Math.abs(one.score)).slice(0, MOST);

/** Names with bars, those against the label in another colour. */
function shares(title, parts, note = "") {
  if (!parts.length) return null;
  const most = Math.max(...parts.map(([, share]) => Math.abs(share)), 1e-9);
  return el(
    "section",
    {},
    el("h4", { class: "heading" }, title),
    note ? el("p", { class: "soft small" }, note) : null,
    el("ul", { class: "shares" }, parts.map(([name, share]) => {
      const fill = el("span", { class: "fill" });
      fill.style.setProperty("--share", (Math.abs(share) / most).toFixed(4));
      return el("li", { class: share < 0 ? "against" : null }, el("span", { class: "name" }, name), el("span", { class: "rail", "aria-hidden": "true" }, fill), el("span", { class: "share" }, signed(share)));
    })),
  );
}

function similar(neighbours = []) {
  if (!neighbours.length) return null;
  const kept = neighbours.some(({ text: near }) => near !== null);
  const whole = neighbours.reduce((sum, { score: share }) => sum + share, 0);
  if (!kept) return el("p", { class: "small" }, `${plural(neighbours.length, "similar training text")} with this label, whose words the model did not keep: ${signed(whole)}.`);
  return el(
    "section",
    {},
    el("h4", { class: "heading" }, "Similar texts that have this label"),
    el("ol", { class: "neighbours" }, strongest(neighbours).map(({ text: near, similarity, score: share }) => el("li", {}, el("span", { class: "name" }, near ?? "(its text was not kept)"), el("span", { class: "soft small" }, `${percent(similarity)} alike, ${signed(share)}`)))),
  );
}

const signed = (value) => `${value < 0 ? "" : "+"}${score(value)}`;

/** The text once more, behind itself, with its words in colours. */
function mark(words) {
  const field = at("text");
  if (field.value !== text) return; // somebody types, and the words are elsewhere by now
  const characters = [...field.value]; // places are counted in characters, not in halves of them
  const most = Math.max(...words.map((word) => Math.abs(word.score)), 1e-9);
  const parts = [];
  let done = 0;
  for (const { start: from, end, score: share } of words) {
    const marked = el("mark", { class: share < 0 ? "against" : null }, characters.slice(from, end).join(""));
    marked.style.setProperty("--share", (Math.abs(share) / most).toFixed(3));
    parts.push(characters.slice(done, from).join(""), marked);
    done = end;
  }
  at("marks").replaceChildren(...parts, characters.slice(done).join(""), "\n");
  at("marks").style.setProperty("width", `${field.clientWidth}px`);
  at("marks").scrollTop = field.scrollTop;
}
