// The first view: a text, and its labels while it is typed.

import * as api from "./api.js";
import * as bars from "./bars.js";
import * as choice from "./choice.js";
import * as code from "./code.js";
import { at, say, sayOrHide } from "./dom.js";
import { characters, count, percent, plural } from "./format.js";
import { Judgement, box } from "./judging.js";
import { Latest, told } from "./latest.js";
import { learn } from "./learning.js";
import { service } from "./service.js";
import * as welcome from "./welcome.js";
import * as why from "./why.js";

const PAUSE = 90; // ms without a key before the service is asked
const SETTLED = 900; // ms before the outcome is read aloud
const SPREADING = 1000; // ms until every worker has heard of what was learnt
const STALE = 250; // ms until a worker that lags behind is asked again

let answer = null; // the labels that are shown
let asked = null; // and the text they are of
let judgement = null; // what the person says of them
let judging = null; // and where
let before = null; // what they were worth before something was learnt
let settled = null;

const asking = new Latest({
  send: (question, signal) => api.predict(question, signal),
  answered: (found, question, milliseconds) => {
    if (!service.seen(found.version)) return asking.ask(question, STALE);
    answer = found.results[0].labels;
    judge(question.text);
    busy(false);
    say(at("latency"), `${Math.max(1, Math.round(milliseconds))} ms`);
    if (!at("predict-trouble").hidden) service.load(); // it may have come back as another one
    trouble("");
    return render();
  },
  failed: (error, seconds) => {
    if (seconds === null) {
      answer = null; // none is coming, and the last one was to another text
      busy(false);
    }
    trouble(told(error, seconds));
    render();
  },
});

export function start() {
  at("text").addEventListener("input", () => typed(PAUSE));
  choice.start(() => typed(PAUSE), render);
  code.start();
  welcome.start(write);
  why.start();
  service.addEventListener("learnt", relearnt);
  at("clear").addEventListener("click", () => write(""));
  service.addEventListener("model", adapt);
  service.addEventListener("catalogue", () => typed());
  service.addEventListener("trouble", () => {
    if (answer === null && !at("text").value.trim()) trouble(told(service.trouble.error, service.trouble.seconds));
  });
  typed(); // the browser may have kept a text over a reload
}

/** Takes a text from the address, if it has one. */
export function show(query) {
  if (query.has("text") && query.get("text") !== at("text").value) write(query.get("text"));
  else if (matchMedia("(pointer: fine)").matches && document.activeElement === document.body) at("text").focus();
}

function write(text) {
  at("text").value = text;
  typed();
  at("text").focus();
}

function typed(delay = 0) {
  const text = at("text").value;
  if (text !== asked) before = null;
  describe(text);
  const most = service.model?.limits?.text_characters ?? Infinity;
  const long = characters(text) > most;
  if (text.trim() && !long) {
    busy(true);
    return asking.ask({ text, ...choice.wanted() }, delay);
  }
  asking.cancel();
  busy(false);
  answer = null;
  trouble(long ? `This text has ${count(characters(text))} characters; the service takes at most ${count(most)}.` : "");
  say(at("latency"), "");
  return render();
}

/** Whether the labels shown are about to change. */
const busy = (is) => at("results").setAttribute("aria-busy", String(is));

function describe(text) {
  const most = service.model?.limits?.text_characters ?? Infinity;
  const length = characters(text);
  at("length").classList.toggle("wrong", length > most);
  say(at("length"), length > most / 2 ? `${count(length)} of ${plural(most, "character")}` : plural(length, "character"));
  const empty = text === "";
  at("clear").hidden = at("link").hidden = empty;
  if (!empty) at("link").href = `#/predict?${new URLSearchParams({ text })}`;
}

/** Whether bars are probabilities depends on the model. */
function adapt() {
  say(at("scale"), service.model.calibrated ? "Bars show probabilities." : "Bars show scores, not probabilities: the model is not calibrated.");
  if (answer === null) typed();
  else render();
}

function trouble(text) {
  sayOrHide(at("predict-trouble"), text);
  at("results").classList.toggle("old", text !== "" && answer !== null);
}

function render() {
  const threshold = choice.threshold();
  const calibrated = answer?.some((label) => label.probability !== null && label.probability !== undefined) ?? false;
  const labels = (answer ?? []).filter((label) => !calibrated || label.probability >= threshold);
  why.about(answer === null ? null : asked);
  const best = Math.max(1, ...labels.map((label) => label.score));
  bars.show(at("results"), labels, {
    share: (label) => (calibrated ? label.probability : label.score / best),
    before,
    marks: (label) => (service.model?.editable && judgement ? judgement.marks(label) : null),
  });
  at("judging").hidden = answer === null || !service.model?.editable;
  at("results").style.setProperty("--threshold", String(threshold));
  at("results").classList.toggle("cut", calibrated && threshold > 0);
  sayOrHide(at("below"), answer === null ? "" : missing(answer.length - labels.length, labels.length, threshold));
  at("empty").hidden = answer !== null || !at("predict-trouble").hidden;
  at("examples").classList.toggle("away", at("text").value !== "");
  code.show({ text: asked, ...choice.said() }, answer && { labels });
  speak(labels);
}

/** Labels of another text are judged from the start. */
function judge(text) {
  if (text === asked) return judging?.update();
  asked = text;
  judgement = new Judgement(text, () => judging.update());
  judging = box(judgement, { predicted: () => new Set((answer ?? []).map(({ key }) => key)), learn });
  return at("judging").replaceChildren(judging.element);
}

/** Asks again what is on the screen, and once more for workers that hear of it later. */
function relearnt() {
  if (answer === null) return;
  before = new Map(answer.map((label) => [label.key, bars.value(label)]));
  judgement.clear();
  typed();
  setTimeout(() => before && typed(), SPREADING);
}

/** What is said of labels that are not shown. */
function missing(hidden, shown, threshold) {
  if (hidden) return `${plural(hidden, shown ? "more label" : "label")} below ${percent(threshold)}.`;
  return shown ? "" : "No label is probable enough for what is asked for.";
}

/** Reads the outcome aloud once it has settled, not on every key. */
function speak(labels) {
  clearTimeout(settled);
  settled = setTimeout(() => {
    const best = labels[0] ? `: ${labels[0].text}, ${bars.value(labels[0])}` : "";
    say(at("spoken"), answer === null ? "" : `${plural(labels.length, "label")}${best}`);
  }, SETTLED);
}
