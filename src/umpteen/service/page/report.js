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

function render({ report, calibration: fitted, certificate, data, training, recipe }) {
  say(at("report-facts"), report ? `judged on ${plural(report.queries, "text")}` : "");
  at("report-body").replaceChildren(
    ...(report ? [section("Metrics", metrics(report)), section("Rare and frequent labels", deciles(report))] : [noReport()]),
    section("Calibration", fitted ? calibration(fitted) : missing("Scores are not turned into probabilities yet.", "umpteen calibrate MODEL --data DATA")),
    section("Index", certificate ? certified(certificate) : exact()),
    section("Model", service.model ? about({ ...service.model, data, training }) : null, recipe ? written(recipe) : null),
  );
}

const section = (title, ...content) => el("section", {}, el("h2", {}, title), ...content);

function missing(what, command) {
  return el("p", { class: "note" }, `${what} `, el("code", {}, command));
}

function noReport() {
  return section("Metrics", missing("This model was saved without a report. What it gets right on your data:", "umpteen evaluate MODEL DATA"));
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

const written = (recipe) => el("details", {}, el("summary", {}, "Recipe"), el("pre", { class: "scroll", tabindex: "0" }, recipe));
