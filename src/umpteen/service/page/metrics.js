// The report's figures: a table with intervals, and where precision comes from by how frequent labels are.

import { el } from "./dom.js";
import { count, plural, points } from "./format.js";

const NAMES = { P: "P", nDCG: "nDCG", R: "R", PSP: "PSP", PSnDCG: "PSnDCG" };
const MEANING = {
  P: "the share of the first k labels that are right",
  nDCG: "the same, where early places count more",
  R: "the share of the right labels that are among the first k",
  PSP: "precision in which rare labels count more",
  PSnDCG: "nDCG in which rare labels count more",
};

/** `meaning` says of what they are. */
export function metrics(report, meaning = measured(report)) {
  const names = Object.keys(report.metrics);
  const ks = [...new Set(names.filter((name) => name.includes("@")).map((name) => Number(name.split("@")[1])))].sort((a, b) => a - b);
  const columns = Object.keys(NAMES).filter((column) => names.some((name) => name.startsWith(`${column}@`)));
  const others = names.filter((name) => !name.includes("@"));
  const head = el("tr", {}, el("th", { scope: "col" }, "k"), columns.map((column) => el("th", { scope: "col" }, NAMES[column])));
  const rows = ks.map((k) => el("tr", {}, el("th", { scope: "row" }, count(k)), columns.map((column) => cell(report, `${column}@${k}`))));
  return el(
    "div",
    {},
    el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Metrics" }, el("table", { class: "metrics" }, el("thead", {}, head), el("tbody", {}, rows))),
    others.length ? el("dl", { class: "facts" }, others.map((name) => [el("dt", {}, name), el("dd", {}, withInterval(report, name))]).flat()) : null,
    el("p", { class: "soft small" }, meaning),
    el("details", {}, el("summary", {}, "What they mean"), el("dl", { class: "facts" }, columns.map((column) => [el("dt", {}, `${column}@k`), el("dd", {}, MEANING[column])]).flat())),
  );
}

function measured({ queries, queries_left_out: left, intervals = {}, propensity: { A, B } = {} }) {
  return [
    `In percent, of ${count(queries)} texts`,
    left ? `, ${count(left)} without a right label left out` : "",
    Object.keys(intervals).length ? "; below each figure its 95 % interval" : "",
    A !== undefined ? `; propensity A ${A}, B ${B}.` : ".",
  ].join("");
}

function cell(report, name) {
  const value = report.metrics[name];
  if (value === undefined) return el("td", {}, "–");
  const interval = report.intervals?.[name];
  return el("td", {}, value.toFixed(2), interval ? el("span", { class: "interval" }, `${points(interval[0])}–${points(interval[1])}`) : null);
}

function withInterval(report, name) {
  const interval = report.intervals?.[name];
  return `${report.metrics[name].toFixed(2)}${interval ? ` (${points(interval[0])}–${points(interval[1])})` : ""}`;
}

/** Ten groups of equally many labels: what each adds to P@k, as bars. */
export function deciles(report) {
  const groups = report.deciles ?? [];
  if (!groups.length) return el("p", { class: "note" }, "The report has no figures by frequency.");
  const ks = Object.keys(groups[0]).filter((name) => name.startsWith("P@"));
  const most = Math.max(...groups.flatMap((group) => ks.map((k) => group[k])), 1e-9);
  const head = el("tr", {}, el("th", { scope: "col" }, "labels"), el("th", { scope: "col" }, "training texts each"), el("th", { scope: "col" }, legend(ks)));
  return el(
    "div",
    {},
    el("table", { class: "deciles" }, el("thead", {}, head), el("tbody", {}, groups.map((group) => decile(group, ks, most)))),
    el("p", { class: "soft small" }, "All labels by how often they occur in training, in ten groups of equally many. The groups’ points add up to the model’s."),
  );
}

const legend = (ks) => ks.map((k, place) => el("span", { class: `legend series-${place}` }, `points of ${k}`));

function decile(group, ks, most) {
  const range = group.most_queries === group.fewest_queries ? count(group.most_queries) : `${count(group.fewest_queries)}–${count(group.most_queries)}`;
  return el(
    "tr",
    {},
    el("th", { scope: "row", title: plural(group.labels, "label") }, names[group.decile - 1] ?? `tenth ${group.decile}`),
    el("td", {}, range),
    el("td", {}, ks.map((k, place) => {
      const bar = el("span", { class: "fill" });
      bar.style.setProperty("--share", (group[k] / most).toFixed(4));
      return el("span", { class: `level series-${place}` }, el("span", { class: "rail", "aria-hidden": "true" }, bar), el("span", { class: "unseen" }, `${k}: `), points(group[k]));
    })),
  );
}

const names = ["most frequent", "2nd tenth", "3rd tenth", "4th tenth", "5th tenth", "6th tenth", "7th tenth", "8th tenth", "9th tenth", "rarest"];
