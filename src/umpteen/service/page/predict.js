// The first view: a text, and its labels while it is typed.

import * as api from "./api.js";
import * as bars from "./bars.js";
import { at, el, say, sayOrHide } from "./dom.js";
import { count, percent, plural } from "./format.js";
import { Latest, told } from "./latest.js";
import { service } from "./service.js";

const PAUSE = 90; // ms without a key before the service is asked
const SETTLED = 900; // ms before the outcome is read aloud
const STALE = 250; // ms until a worker that lags behind is asked again
const MOST = 20; // labels

let answer = null; // the labels that are shown
let settled = null;

const asking = new Latest({
  send: ({ text, k }, signal) => api.predict(text, k, signal),
  answered: (found, question, milliseconds) => {
    if (!service.seen(found.version)) return asking.ask(question, STALE);
    answer = found.results[0].labels;
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
  at("k").addEventListener("input", () => typed(PAUSE));
  at("threshold").addEventListener("input", render);
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
  const k = Number(at("k").value);
  say(at("k-said"), count(k));
  describe(text);
  const most = service.model?.limits?.text_characters ?? Infinity;
  const long = characters(text) > most;
  if (text.trim() && !long) {
    busy(true);
    return asking.ask({ text, k }, delay);
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

/** As the service counts them: not the halves that JavaScript's strings are made of. */
function characters(text) {
  let number = 0;
  for (const _ of text) number += 1;
  return number;
}

function describe(text) {
  const most = service.model?.limits?.text_characters ?? Infinity;
  const length = characters(text);
  at("length").classList.toggle("wrong", length > most);
  say(at("length"), length > most / 2 ? `${count(length)} of ${plural(most, "character")}` : plural(length, "character"));
  const empty = text === "";
  at("clear").hidden = at("link").hidden = empty;
  if (!empty) at("link").href = `#/predict?${new URLSearchParams({ text })}`;
}

/** What depends on the model: how many labels can be asked for, whether there are probabilities, examples. */
function adapt() {
  const { labels, limits, calibrated, examples = [] } = service.model;
  at("k").max = String(Math.max(1, Math.min(MOST, labels, limits?.k ?? MOST)));
  at("threshold-dial").hidden = !calibrated;
  at("examples").hidden = examples.length === 0;
  at("examples").querySelector("ul").replaceChildren(
    ...examples.map((text) => el("li", {}, el("button", { type: "button", class: "example", onclick: () => write(text) }, text))),
  );
  const scale = calibrated ? "Bars show probabilities." : "Bars show scores, not probabilities: the model is not calibrated.";
  say(at("scale"), scale);
  if (answer === null) typed();
  else render();
}

function trouble(text) {
  sayOrHide(at("predict-trouble"), text);
  at("results").classList.toggle("old", text !== "" && answer !== null);
}

function render() {
  const threshold = Number(at("threshold").value) / 100;
  const calibrated = answer?.some((label) => label.probability !== null && label.probability !== undefined) ?? false;
  const labels = (answer ?? []).filter((label) => !calibrated || label.probability >= threshold);
  const best = Math.max(1, ...labels.map((label) => label.score));
  bars.show(at("results"), labels, (label) => (calibrated ? label.probability : label.score / best));
  say(at("threshold-said"), percent(threshold));
  at("results").style.setProperty("--threshold", String(threshold));
  at("results").classList.toggle("cut", calibrated && threshold > 0);
  const hidden = (answer?.length ?? 0) - labels.length;
  sayOrHide(at("below"), hidden ? `${plural(hidden, labels.length ? "more label" : "label")} below ${percent(threshold)}.` : "");
  at("empty").hidden = answer !== null || !at("predict-trouble").hidden;
  speak(labels);
}

/** Reads the outcome aloud once it has settled, not on every key. */
function speak(labels) {
  clearTimeout(settled);
  settled = setTimeout(() => {
    const best = labels[0] ? `: ${labels[0].text}, ${bars.value(labels[0])}` : "";
    say(at("spoken"), answer === null ? "" : `${plural(labels.length, "label")}${best}`);
  }, SETTLED);
}
