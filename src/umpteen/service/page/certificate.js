// The certificate of an index in sentences: what it finds, how that was measured, and what it costs.

import { el } from "./dom.js";
import { definitions } from "./facts.js";
import { bytes, count, plural, points } from "./format.js";

export function certified(certificate) {
  const { kind, recall, target, queries_per_second: speed, bytes: size } = certificate;
  const held = recall >= target;
  return el(
    "div",
    { class: "certificate" },
    el("p", { class: "figure" }, share(recall), el("span", {}, ` of the ${count(certificate.k)} best labels are found`)),
    el("p", {}, `${kind} search looks at some of the ${count(certificate.labels)} labels only. ${interval(certificate)}`, held ? ` It was asked for ${share(target)}, and reached it.` : ` It was asked for ${share(target)}.`),
    el("p", {}, `Measured on ${plural(certificate.queries, "text")} (${certificate.sample}), none of which it was tuned on, against exact search, which misses nothing.`),
    el("ul", {}, [faster(speed), smaller(size), `Built in ${seconds(certificate.build_seconds)}, over version ${count(certificate.catalogue_version)} of the labels. Labels that came since are compared exactly.`].filter(Boolean).map((line) => el("li", {}, line))),
    el("details", {}, el("summary", {}, "All its figures"), definitions(certificate)),
  );
}

const share = (value) => `${points(100 * value)} %`;
const seconds = (value) => (value < 1 ? "less than a second" : value < 90 ? plural(Math.round(value), "second") : plural(Math.round(value / 60), "minute"));

function interval({ recall_interval: [from, to] = [] }) {
  return from === undefined ? "" : `With other texts the share may be ${share(from)} to ${share(to)}.`;
}

function faster(speed) {
  if (!speed?.index || !speed?.exact) return null;
  const times = speed.index / speed.exact;
  const said = times >= 1 ? `${points(times)} times as fast as exact search` : `Slower than exact search (${points(1 / times)} times as long)`;
  return `${said}: ${count(speed.index)} against ${count(speed.exact)} texts a second, one at a time.`;
}

function smaller(size) {
  return size?.index && size?.exact ? `${bytes(size.index)}; the vectors themselves take ${bytes(size.exact)}.` : null;
}
