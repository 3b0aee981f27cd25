// The page's start: which view the address names, what the header and footer say.

import { at, say } from "./dom.js";
import { count, plural } from "./format.js";
import * as labels from "./labels.js";
import * as predict from "./predict.js";
import * as report from "./report.js";
import * as review from "./review.js";
import { service } from "./service.js";

const views = { predict, review, labels, report };
const titles = { predict: "Predict", review: "Review", labels: "Labels", report: "Report" };
let current = null;

/** The view that the address's hash names, and what it passes on: #/labels?search=dog. */
function route() {
  const [name, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  if (name === "main") return; // the link that skips the header
  const view = name in views ? name : "predict";
  const moved = current !== null && current !== view;
  for (const other of Object.keys(views)) at(other).hidden = other !== view;
  for (const link of document.querySelectorAll("nav [data-view]")) {
    if (link.dataset.view === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  current = view;
  views[view].show(new URLSearchParams(query));
  title();
  if (moved) {
    scrollTo(0, 0);
    at(`${view}-title`).focus({ preventScroll: true });
  }
}

function title() {
  const name = service.model?.name;
  document.title = [titles[current], name, "umpteen"].filter(Boolean).join(" · ");
}

function facts() {
  const { name, labels, version, calibrated, index } = service.model;
  say(at("model-name"), name ?? "");
  const parts = [plural(labels, "label"), `version ${count(version)}`];
  if (index?.kind) parts.push(`${index.kind} search`);
  parts.push(calibrated ? "calibrated" : "not calibrated");
  say(at("facts"), parts.join(" · "));
  title();
}

/** "/" leads to the field one writes in, as long as one isn't writing already. */
function shortcut(event) {
  const writing = event.target.closest("input, textarea, select, dialog");
  if (event.key !== "/" || writing || event.ctrlKey || event.metaKey || event.altKey) return;
  const field = { predict: "text", review: "lines", labels: "search" }[current];
  if (!field) return;
  event.preventDefault();
  at(field).focus();
}

service.addEventListener("model", facts);
addEventListener("hashchange", route);
document.addEventListener("keydown", shortcut);
for (const view of Object.values(views)) view.start();
service.load();
route();
