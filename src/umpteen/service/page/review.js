// The review: many texts, those whose labels are least certain first, and what a person says of each.

import * as api from "./api.js";
import { value } from "./bars.js";
import { at, el, say, sayOrHide } from "./dom.js";
import { characters, count, plural } from "./format.js";
import { Judgement, box } from "./judging.js";
import { told, untilAsked } from "./latest.js";
import { learn } from "./learning.js";
import * as learnt from "./learnt.js";
import { service } from "./service.js";
import { textsOf } from "./texts.js";
import * as token from "./token.js";

const LABELS = 5; // of a text: by these it is ordered, and so many are shown at least
const BATCH = 64; // texts that are asked for together
const AROUND = 100; // bytes of a request besides its texts
const MOST = 5000; // texts of a review
const SHOWN = 10; // at once
const LEARNT = 10_000; // texts learnt before, the newest: the service tells no more at once

let items = []; // { text, labels, certainty, card, done: whether it was learnt or skipped }
let source = null; // { said: what they were taken from, unfit, learnt: how many were left out; null if that is not known }
let failed = false; // whether the last question was not answered
let run = 0; // of the questions; an older one's answers are dropped

export function start() {
  learnt.start();
  at("intake").addEventListener("submit", (event) => {
    event.preventDefault();
    begin("pasted.txt", at("lines").value);
  });
  at("file").addEventListener("change", async ({ target }) => {
    const [file] = target.files;
    if (file) begin(file.name, await file.text());
    target.value = "";
  });
  at("again").addEventListener("click", () => ask(items.filter((item) => !item.done)));
  at("other-texts").addEventListener("click", () => {
    run += 1;
    items = [];
    source = null;
    trouble("");
    at("lines").focus();
  });
  service.addEventListener("model", () => (at("review-locked").hidden = service.model.editable));
}

export function show() {}

async function begin(name, content) {
  source = null;
  trouble("");
  try {
    const { texts, said } = textsOf(name, content);
    if (!texts.length) throw new SyntaxError("there is no text in it");
    const longest = service.model?.limits?.text_characters ?? Infinity;
    const short = texts.filter((text) => characters(text) <= longest);
    const mine = (source = { said, unfit: texts.length - short.length, learnt: null });
    items = short.map((text) => ({ text, labels: [], certainty: null, card: null, done: false }));
    await leaveOut();
    if (source !== mine) return;
    source.unfit += items.splice(MOST).length;
    ask(items);
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;
    sayOrHide(at("review-trouble"), `${name} cannot be read: ${error.message}.`);
  }
}

/** Leaves out the texts that were learnt before. They are told to who has the token: else it is done after the first lesson. */
async function leaveOut() {
  const mine = source;
  if (mine?.learnt !== null || !service.model?.editable || token.kept() === null) return;
  try {
    const { examples } = await api.examples(LEARNT, token.kept());
    if (source !== mine) return;
    const before = new Set(examples.map(({ text }) => text.trim()));
    const others = items.filter(({ text, done }) => done || !before.has(text));
    mine.learnt = items.length - others.length;
    items = others;
  } catch (error) {
    if (error.passes === undefined) throw error; // else the next lesson tries again
  }
}

/** Asks for the labels of these texts, batch by batch; the list is in order once all have come. */
async function ask(wanted) {
  const mine = (run += 1);
  const k = width();
  for (const item of wanted) item.certainty = null;
  trouble("");
  for (const some of batches(wanted, k)) {
    const results = await answers(some, k, () => mine === run);
    if (results === null) return;
    some.forEach((item, place) => {
      const { labels } = results[place];
      const would = given(labels);
      const shown = labels.filter((label, rank) => rank < LABELS || would.includes(label));
      Object.assign(item, { labels: shown, certainty: certainty(labels.slice(0, LABELS)), card: null });
    });
    trouble("");
  }
  items.sort((one, two) => one.certainty - two.certainty);
  render();
}

/** The texts in as many requests as it takes for each to stay within the service's limits. */
function* batches(wanted, k) {
  const limits = service.model?.limits ?? {};
  const texts = Math.max(1, Math.min(BATCH, limits.texts ?? BATCH, Math.floor((limits.answers ?? Infinity) / k)));
  const most = [texts, limits.characters ?? Infinity, (limits.body_bytes ?? Infinity) - AROUND];
  let some = [];
  let sums = [0, 0, 0];
  for (const item of wanted) {
    const sizes = [1, characters(item.text), new Blob([JSON.stringify(item.text)]).size + 1];
    if (some.length && sums.some((sum, place) => sum + sizes[place] > most[place])) {
      yield some;
      [some, sums] = [[], [0, 0, 0]];
    }
    some.push(item);
    sums = sums.map((sum, place) => sum + sizes[place]);
  }
  if (some.length) yield some;
}

/** What the service says of these texts, asked again while a failure may pass; null if it refuses, or nobody waits. */
async function answers(some, k, isWanted) {
  const question = { texts: some.map(({ text }) => text), k };
  for (let attempt = 0; isWanted(); attempt += 1) {
    try {
      const { results } = await api.predict(question);
      return isWanted() ? results : null;
    } catch (error) {
      if (error.passes === undefined) throw error;
      if (!isWanted()) return null;
      const seconds = untilAsked(error, attempt);
      trouble(told(error, seconds));
      if (seconds === null) return null;
      await new Promise((resume) => setTimeout(resume, 1000 * seconds));
    }
  }
  return null;
}

function trouble(text) {
  failed = text !== "";
  sayOrHide(at("review-trouble"), text);
  render();
}

/** How sure the model is of each of a text's labels, right or wrong; without probabilities, the widest gap of scores. */
export function certainty(labels) {
  if (labels.some(({ probability }) => probability === null || probability === undefined)) {
    return Math.max(0, ...labels.slice(1).map(({ score }, place) => labels[place].score - score));
  }
  return labels.reduce((sum, { probability }) => sum + Math.max(probability, 1 - probability), 0) / Math.max(1, labels.length);
}

function render() {
  const asked = items.filter((item) => item.certainty !== null).length;
  const done = items.filter((item) => item.done).length;
  const complete = asked === items.length;
  at("intake").hidden = items.length > 0;
  at("queue").hidden = items.length === 0;
  say(at("intake-said"), source ? taken(source) : "");
  at("again").hidden = !(complete || failed) || done === items.length;
  say(at("progress-said"), complete ? `${count(done)} of ${plural(items.length, "text")} reviewed` : `${count(asked)} of ${plural(items.length, "text")} read`);
  at("progress").value = (complete ? done : asked) / Math.max(1, items.length);
  const left = complete ? items.filter((item) => !item.done) : [];
  at("cards").replaceChildren(...left.slice(0, SHOWN).map((item) => (item.card ??= cardOf(item))));
  sayOrHide(at("cards-more"), left.length > SHOWN ? `${plural(left.length - SHOWN, "more text")} after these.` : complete && items.length && !left.length ? "All texts are reviewed." : "");
}

/** What is said of where the texts are from. */
function taken({ said, unfit, learnt: before }) {
  const left = [unfit ? `${count(unfit)} left out, too long or too many` : "", before ? `${count(before)} left out, learnt before` : ""];
  return [`${plural(items.length, "text")} from ${said}`, ...left.filter(Boolean)].join("; ");
}

/** The rule by which the model gives its best number of labels, if it has probabilities. */
const rule = () => service.report?.calibration?.rules?.f1;

/** Of how many labels a text's are chosen: of all that the rule may give. */
const width = () => Math.min(Math.max(LABELS, rule()?.at_most ?? 0), service.model?.labels ?? LABELS, service.model?.limits?.k ?? LABELS);

/** The labels the model would give; they can be accepted all at once. */
function given(labels) {
  if (!rule()) return labels.slice(0, 1);
  const { threshold, at_most: most } = rule();
  return labels.slice(0, most).filter(({ probability }) => probability >= threshold);
}

function cardOf(item) {
  const editable = service.model?.editable ?? false;
  const judgement = new Judgement(item.text, () => judging.update());
  const would = given(item.labels);
  const finish = (done) => {
    const place = [...at("cards").children].indexOf(item.card);
    item.done = done;
    if (!done) item.card = null;
    render();
    const next = at("cards").children[Math.max(0, Math.min(place, at("cards").children.length - 1))];
    (next?.querySelector("button") ?? at("other-texts")).focus({ preventScroll: !done });
  };
  const teach = async (example) => {
    const taught = await learn(example, () => finish(false));
    if (taught) {
      item.done = true; // what was learnt before is something else
      await leaveOut();
      finish(true);
    }
    return taught;
  };
  const accept = el("button", { type: "button", onclick: () => {
    for (const label of would) judgement.right.has(label.key) || judgement.wrong.has(label.key) || judgement.say("right", label);
    item.card.querySelector(".teach .main").click();
  } }, would.length === 1 ? "Accept the first" : `Accept the first ${would.length}`);
  const skip = el("button", { type: "button", onclick: () => finish(true) }, "Skip");
  const judging = box(judgement, { predicted: () => new Set(item.labels.map(({ key }) => key)), learn: teach, name: "Learn", more: [...(would.length ? [accept] : []), skip] });
  return el(
    "li",
    { class: "card" },
    el("p", { class: "reviewed" }, item.text),
    el("ul", { class: "candidates" }, item.labels.map((label) => el("li", { class: would.includes(label) ? null : "unlikely" }, el("span", { class: "name" }, label.text), el("span", { class: "value" }, value(label)), editable ? judgement.marks(label) : null))),
    editable ? judging.element : null,
  );
}
