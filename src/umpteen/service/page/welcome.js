// What stands where labels will be: what the model knows, how good it is, and texts to try.

import * as api from "./api.js";
import { at, el } from "./dom.js";
import { count, percent, plural, points } from "./format.js";
import { service } from "./service.js";

const PLACES = [0.13, 0.42, 0.77]; // of the labels whose texts are shown, between the first and the last
const LONGEST = 400; // characters
let offered = null; // for how many labels

/** Calls back with the example that was chosen. */
export function start(write) {
  service.addEventListener("model", () => {
    know();
    offer(write);
  });
  service.addEventListener("report", know);
}

function know() {
  if (!service.model) return;
  const { report, data = {}, training = {}, calibration } = service.report ?? {};
  const facts = [
    ["Labels", `${count(service.model.labels)}${service.model.version ? `, version ${count(service.model.version)}` : ", as trained"}`],
    ["Trained on", data.name ?? null],
    ["Made of", parts(service.model).join(" · ")],
    ...(report ? [worth(`On ${plural(report.queries, "text")} it was not trained on`, report.metrics)] : [...earlier(training.held_out), ...(calibration ? rule(calibration) : [])]),
  ].filter(([, value]) => value);
  at("knows").replaceChildren(...facts.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]).flat());
}

function parts({ dimension, ranker, calibrated, index }) {
  const search = `${index?.kind ?? "exact"} search`;
  return [`vectors of ${count(dimension)} numbers`, ranker ? "a ranker" : "no ranker", search, calibrated ? "probabilities" : "scores, no probabilities"];
}

/** The first figures, as sentences. */
function worth(name, metrics) {
  const said = { "P@1": "the first label is right", "P@5": "of the first five labels are right", "nDCG@5": "the same, where early places count more", "R@10": "of the right labels are among the first ten" };
  const lines = Object.entries(said).filter(([name]) => name in metrics).map(([name, meaning]) => `${points(metrics[name])} %: ${meaning} (${name})`);
  return [name, el("ul", {}, lines.map((line) => el("li", {}, line)))];
}

/** Where there is no report: what fit found before it trained on validation, too. */
function earlier(reached = {}) {
  return Object.keys(reached).length ? [worth("On validation, before it was trained on that too", reached)] : [];
}

/** And what the best number of labels was worth to the calibration. */
function rule({ rules: { f1 }, held_out: { texts } }) {
  if (!f1 || !texts) return [];
  return [[`On ${plural(texts, "text")} held out`, `${points(f1.labels_per_text)} labels a text: ${percent(f1.precision)} of them right, ${percent(f1.recall)} of the right ones found`]];
}

/** Texts of a few labels: the one kind of text that every model has. */
async function offer(write) {
  const { labels } = service.model;
  if (offered === labels || at("text").value) return;
  offered = labels;
  try {
    const found = await Promise.all(PLACES.map((place) => api.labels({ search: "", start: Math.floor(place * labels), count: 1, retired: false })));
    const texts = [...new Set(found.flatMap((page) => page.labels).map(({ text }) => text).filter((text) => text.length <= LONGEST))];
    at("examples").querySelector("ul").replaceChildren(...texts.map((text) => el("li", {}, el("button", { type: "button", class: "example", onclick: () => write(text) }, el("span", {}, text)))));
    at("examples").hidden = texts.length === 0;
  } catch {
    offered = null; // the next look at the model tries again
  }
}
