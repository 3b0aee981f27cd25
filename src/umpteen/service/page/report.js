// The third view: how good the model is, as its report says, and what is not known yet.

import { certified } from "./certificate.js";
import { at, el, say, sayOrHide } from "./dom.js";
import { definitions } from "./facts.js";
import { plural } from "./format.js";
import { told } from "./latest.js";
import { deciles, metrics } from "./metrics.js";
import { calibration } from "./reliability.js";
import { service } from "./service.js";

export function start() {
  service.addEventListener("report", show);
  service.addEventListener("report-trouble", ({ detail: { error, seconds } }) => sayOrHide(at("report-trouble"), told(error, seconds)));
}

export function show() {
  if (service.report === null || at("report").hidden) return;
  sayOrHide(at("report-trouble"), "");
  render(service.report);
}

function render({ report, calibration: fitted, certificate, data, training: { held_out: earlier = {}, ...training } = {} }) {
  const isEarlier = !report && Object.keys(earlier).length > 0;
  say(at("report-facts"), report ? `judged on ${plural(report.queries, "text")}` : isEarlier ? "judged on validation, before the last fit" : "");
  at("report-body").replaceChildren(
    section("Metrics", ...(report ? [metrics(report)] : isEarlier ? judgedEarlier(earlier) : [noReport()])),
    ...(report ? [section("Rare and frequent labels", deciles(report))] : []),
    section("Calibration", fitted ? calibration(fitted) : missing("Scores are not turned into probabilities yet.", "umpteen calibrate MODEL --data DATA")),
    section("Index", certificate ? certified(certificate) : exact()),
    section("Model", service.model ? about({ ...service.model, data, training }) : null),
  );
}

const section = (title, ...content) => el("section", {}, el("h2", {}, title), ...content);

function missing(what, command) {
  return el("p", { class: "note" }, `${what} `, el("code", {}, command));
}

function noReport() {
  return missing("This model was saved without a report. What it gets right on your data:", "umpteen evaluate MODEL DATA");
}

/** What fit keeps: its model is trained on validation, too, so nothing is left to judge it on. */
function judgedEarlier(reached) {
  const meaning = "In percent, on validation: what the same settings reached when they were trained without it. This model was then trained on validation, too.";
  return [metrics({ metrics: reached }, meaning), missing("What this model gets right on other texts:", "umpteen evaluate MODEL DATA")];
}

function exact() {
  const kind = service.model?.index?.kind ?? "exact";
  if (kind !== "exact") return missing(`${kind}, without a certificate. Measure its recall:`, `umpteen index build MODEL --kind ${kind}`);
  return el(
    "div",
    {},
    el("p", { class: "plainly" }, "Exact search: every label is compared, none is missed."),
    missing("For very many labels, an index that is certified against it:", "umpteen index build MODEL --kind faiss-hnsw --recall 0.99"),
  );
}

function about({ name, labels, version, dimension, encoder, ranker, data, training, limits }) {
  return definitions({ name, labels, "catalogue version": version, dimension, encoder, ranker, data, training, limits });
}
