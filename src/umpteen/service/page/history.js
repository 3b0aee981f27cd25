// The catalogue's versions, newest first, each with what it changed and the way back to it; without any, nothing to undo.

import * as api from "./api.js";
import * as changes from "./changes.js";
import { at, el } from "./dom.js";
import { count, time } from "./format.js";
import { Latest } from "./latest.js";
import { service } from "./service.js";

const MOST = 30; // versions
const STALE = 250; // ms

const asking = new Latest({
  send: (_, signal) => api.history(signal),
  answered: ({ version, versions }) => (service.seen(version) ? render(versions) : asking.ask(null, STALE)),
  failed: () => {}, // the list above tells of a service that is away
});

export function load() {
  if (service.version) return asking.ask(null);
  asking.cancel();
  return render([]); // nothing was ever changed
}

function render(versions) {
  const editable = service.model?.editable ?? false;
  at("history").hidden = versions.length === 0;
  at("undo").hidden = !editable || versions.length === 0; // labels that were compacted have a version, but no history
  at("history").querySelector("ol").replaceChildren(
    ...versions.slice(0, MOST).map((entry, position) => line(entry, position === 0, editable)),
    ...(versions.length && versions.length <= MOST ? [line(first(versions), false, editable)] : []),
  );
}

// What the model was written with; its labels have had versions before if it was compacted.
function first(versions) {
  const version = versions.at(-1).version - 1;
  return { version, note: version ? "as compacted" : "as trained" };
}

function line(entry, newest, editable) {
  const parts = ["added", "renamed", "retired"].filter((what) => entry[what]).map((what) => `${what} ${count(number(entry[what]))}`);
  if (entry.note) parts.push(entry.note);
  const back = newest
    ? el("button", { type: "button", class: "plain", onclick: () => changes.undo() }, "Undo this change")
    : el("button", { type: "button", class: "plain", onclick: () => changes.undo(entry.version) }, `Back to version ${entry.version}`);
  return el(
    "li",
    {},
    el("span", { class: "version" }, `Version ${count(entry.version)}`),
    el("span", {}, parts.join(", ") || "no change"),
    el("span", { class: "soft" }, entry.time ? time(entry.time) : ""),
    ...(editable ? [back] : []),
  );
}

const number = (value) => (Array.isArray(value) ? value.length : value);
