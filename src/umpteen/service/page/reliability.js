// What the probabilities are worth: the reliability diagram, and what thresholds and rules gave on held-out texts.

import { el, shape } from "./dom.js";
import { definitions } from "./facts.js";
import { brief, percent, plural } from "./format.js";

const SIDE = 300; // of the square, in the picture's units
const MARGIN = { left: 44, top: 12, right: 12, bottom: 42 };
const PRECISIONS = [0.5, 0.7, 0.8, 0.9, 0.95];

/** The diagram beside the figures and tables. */
export function calibration(fitted) {
  const drawn = picture(fitted);
  const told = el("div", { class: "stack" }, summary(fitted), thresholds(fitted.precision ?? []), rules(fitted.rules ?? {}));
  return el("div", { class: drawn ? "beside" : "stack" }, drawn, told);
}

/** Drawn from its bins, over the best five labels; none of a calibration from before they were stored. */
function picture({ figures: measured = {} }) {
  const depths = measured.by_depth ?? {};
  const shown = depths["5"] ?? Object.values(depths).at(-1) ?? {};
  const bins = (shown.calibrated?.bins ?? []).map(bin);
  if (!bins.length) return null;
  const raw = (shown.raw?.bins ?? []).map(bin);
  return el(
    "figure",
    { class: "diagram" },
    diagram(bins, raw),
    el("p", { class: "small" }, el("span", { class: "legend series-0" }, "probabilities"), raw.length ? el("span", { class: "legend series-1" }, "scores themselves") : null),
    el("figcaption", { class: "soft small" }, "The share of labels that is right, by the probability they were given. On the dashed line both agree."),
  );
}

const bin = ([pairs, probability, right]) => ({ pairs, probability, right });

function diagram(bins, raw) {
  const { left, top, right, bottom } = MARGIN;
  const x = (value) => left + SIDE * value;
  const y = (value) => top + SIDE * (1 - value);
  const ticks = [0, 0.25, 0.5, 0.75, 1];
  const line = (curve) => curve.map((one) => `${x(one.probability).toFixed(1)},${y(one.right).toFixed(1)}`).join(" ");
  const spoken = bins.map((one) => `${Math.round(100 * one.probability)} % given, ${Math.round(100 * one.right)} % right`).join("; ");
  return shape(
    "svg",
    { viewBox: `0 0 ${left + SIDE + right} ${top + SIDE + bottom}`, role: "img", "aria-label": `Reliability diagram. ${spoken}` },
    ticks.map((tick) => [
      shape("line", { class: "grid", x1: x(0), x2: x(1), y1: y(tick), y2: y(tick) }),
      shape("line", { class: "grid", x1: x(tick), x2: x(tick), y1: y(0), y2: y(1) }),
      shape("text", { x: x(tick), y: y(0) + 18, "text-anchor": "middle" }, `${100 * tick}`),
      shape("text", { x: x(0) - 8, y: y(tick) + 4, "text-anchor": "end" }, `${100 * tick}`),
    ]).flat(),
    shape("line", { class: "ideal", x1: x(0), y1: y(0), x2: x(1), y2: y(1) }),
    raw.length ? shape("polyline", { class: "curve raw", points: line(raw) }) : null,
    shape("polyline", { class: "curve", points: line(bins) }),
    bins.map((one) => shape(
      "circle",
      { class: "dot", cx: x(one.probability), cy: y(one.right), r: 4 },
      shape("title", {}, `${(100 * one.probability).toFixed(1)} % given, ${(100 * one.right).toFixed(1)} % right, ${plural(one.pairs, "label")}`),
    )),
    shape("text", { class: "axis", x: x(0.5), y: top + SIDE + bottom - 4, "text-anchor": "middle" }, "probability given, %"),
    shape("text", { class: "axis", transform: `translate(12 ${y(0.5)}) rotate(-90)`, "text-anchor": "middle" }, "right, %"),
  );
}

function summary({ figures = {}, held_out: heldOut, confidence }) {
  return definitions({
    "expected calibration error": figures.ece === undefined ? null : brief(figures.ece),
    "of the scores themselves": figures.ece_raw === undefined ? null : brief(figures.ece_raw),
    "measured over": figures.over ?? null,
    "held out": heldOut?.said ?? heldOut,
    "confidence in a promised precision": confidence === undefined ? null : percent(confidence),
  });
}

/** The lowest threshold that promises a precision, as `predict --precision` takes it. */
function thresholds(steps) {
  const rows = PRECISIONS.map((wanted) => [wanted, steps.find((step) => step.precision >= wanted)]).filter(([, step]) => step);
  if (!rows.length) return null;
  return table(["for a precision of", "threshold", "right labels found"], rows.map(([wanted, step]) => [percent(wanted), percent(step.threshold), percent(step.recall)]));
}

/** How many labels to give, as chosen on held-out texts. */
function rules(found) {
  const rows = Object.entries(found).map(([name, rule]) => [
    name === "f1" ? "best F1" : name,
    percent(rule.threshold),
    rule.labels_per_text.toFixed(1),
    percent(rule.precision),
    percent(rule.recall),
  ]);
  return rows.length ? table(["rule", "threshold", "labels a text", "precision", "recall"], rows) : null;
}

function table(head, rows) {
  return el(
    "div",
    { class: "scroll" },
    el(
      "table",
      { class: "figures" },
      el("thead", {}, el("tr", {}, head.map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, rows.map(([first, ...rest]) => el("tr", {}, el("th", { scope: "row" }, first), rest.map((value) => el("td", {}, value))))),
    ),
  );
}
