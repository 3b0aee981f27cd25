// How many labels are asked for: a number, the best number, all that are probably right, or a precision.

import { at, say } from "./dom.js";
import { count, percent } from "./format.js";
import { service } from "./service.js";

const MOST = 20; // labels, where a number is asked for
const ABOUT = {
  k: "",
  f1: "As many as were best on texts held out of training: the greatest F1.",
  coverage: "As many as hold nearly all right labels of texts held out of training.",
  precision: "As many as can be given so that this share of them is right, as held-out texts promise.",
};

/** Calls back when something else is to be asked, and when only the threshold moved. */
export function start(changed, moved) {
  for (const control of ["mode", "k", "precision"]) at(control).addEventListener("input", () => (tell(), changed()));
  at("threshold").addEventListener("input", () => (tell(), moved()));
  service.addEventListener("model", adapt);
  service.addEventListener("report", limit);
  tell();
}

/** The part of a question that says how many. */
export function wanted() {
  const mode = at("mode").value;
  if (mode === "k") return { k: Number(at("k").value) };
  return mode === "precision" ? { precision: Number(at("precision").value) / 100 } : { rule: mode };
}

/** The same with the threshold, as who asks by program would say it. */
export const said = () => (threshold() > 0 ? { ...wanted(), min_probability: threshold() } : wanted());

export const threshold = () => Number(at("threshold").value) / 100;

function tell() {
  const mode = at("mode").value;
  at("k-dial").hidden = mode !== "k";
  at("precision-dial").hidden = mode !== "precision";
  say(at("mode-about"), ABOUT[mode]);
  say(at("k-said"), count(Number(at("k").value)));
  say(at("precision-said"), percent(Number(at("precision").value) / 100));
  say(at("threshold-said"), percent(threshold()));
}

function adapt() {
  const { labels, limits, calibrated } = service.model;
  at("k").max = String(Math.max(1, Math.min(MOST, labels, limits?.k ?? MOST)));
  at("mode-dial").hidden = at("threshold-dial").hidden = !calibrated;
  if (!calibrated) {
    at("mode").value = "k";
    at("threshold").value = "0";
  }
  tell();
}

/** No precision can be asked for that is not promised. */
function limit() {
  const best = service.report.calibration?.precision?.at(-1)?.precision ?? 0;
  at("mode").querySelector("[value=precision]").hidden = best === 0;
  at("precision").max = String(Math.max(1, Math.floor(100 * best)));
  at("precision").min = String(Math.min(50, Number(at("precision").max) - 1));
  tell();
}
