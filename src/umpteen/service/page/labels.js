// The second view: the catalogue, searched and paged; what changes it is in editing.js and label_row.js.

import * as api from "./api.js";
import * as changes from "./changes.js";
import { at, say, sayOrHide } from "./dom.js";
import * as editing from "./editing.js";
import { count, plural } from "./format.js";
import * as history from "./history.js";
import { Latest, told } from "./latest.js";
import { rowOf } from "./label_row.js";
import { service } from "./service.js";

const PAUSE = 150; // ms
const STALE = 250; // ms
const PAGE = 50; // labels

let first = 0;
let shown = false;
let newest = null; // the key of a label that was just added

const asking = new Latest({
  send: (question, signal) => api.labels(question, signal),
  answered: (found, question) => {
    if (!service.seen(found.version)) return asking.ask(question, STALE);
    sayOrHide(at("labels-trouble"), "");
    if (question.start && found.labels.length === 0) return turn(0); // the last label of the last page went
    return render(found, question);
  },
  failed: (error, seconds) => sayOrHide(at("labels-trouble"), told(error, seconds)),
});

export function start() {
  at("search").addEventListener("input", () => turn(0, PAUSE));
  at("search").addEventListener("keydown", (event) => event.key === "Escape" && event.target.value === "" && event.target.blur());
  at("retired").addEventListener("change", () => turn(0));
  at("sort").addEventListener("change", () => turn(0));
  at("earlier").addEventListener("click", () => turn(first - PAGE));
  at("undo").addEventListener("click", () => changes.undo());
  at("later").addEventListener("click", () => turn(first + PAGE));
  service.addEventListener("catalogue", refresh);
  service.addEventListener("model", () => {
    editing.adapt(service.model.editable, added);
    for (const option of at("sort").querySelectorAll('[value="frequent"], [value="rare"]')) option.hidden = !service.model.ranker;
    facts();
    if (shown) history.load();
  });
}

export function show(query) {
  shown = true;
  if (query.has("search")) at("search").value = query.get("search");
  turn(query.has("search") ? 0 : first);
  history.load();
}

function refresh() {
  if (shown) turn(first);
}

function turn(to, delay = 0) {
  first = Math.max(0, to);
  const search = at("search").value.trim();
  asking.ask({ search, start: first, count: PAGE, retired: at("retired").checked, sort: at("sort").value }, delay);
}

function facts() {
  const { labels, version } = service.model;
  say(at("labels-facts"), `${plural(labels, "label")} · ${version ? `version ${count(version)}` : "as trained"}`);
}

/** A label that was just added is in view: the first of the newest. */
function added(key) {
  newest = key;
  at("search").value = "";
  at("sort").value = "newest";
  turn(0);
}

/** Fills the list, but leaves a row alone in which someone is writing. */
function render({ labels, total }, { search }) {
  const editable = service.model?.editable ?? false;
  const list = at("rows");
  const writing = new Map([...list.children].filter((row) => row.querySelector("form")).map((row) => [row.dataset.key, row]));
  const focused = document.activeElement?.closest("#rows > li");
  const place = [...list.children].indexOf(focused);
  list.replaceChildren(...labels.map((label) => writing.get(label.key) ?? rowOf(label, editable)));
  const fresh = [...list.children].find((row) => row.dataset.key === newest);
  if (fresh) {
    fresh.classList.add("fresh");
    fresh.scrollIntoView({ block: "nearest" });
  }
  if (focused && !list.contains(focused)) {
    const rows = [...list.children];
    const row = rows.find(({ dataset }) => dataset.key === focused.dataset.key) ?? rows[Math.min(place, rows.length - 1)];
    (row?.querySelector("button") ?? at("search")).focus({ preventScroll: true }); // where the person was, or next to it
  }
  sayOrHide(at("none"), labels.length ? "" : search ? `No label has “${search}” in its text or key.` : "There are no labels.");
  at("earlier").disabled = first === 0;
  at("later").disabled = first + labels.length >= total;
  at("pages").hidden = labels.length === 0;
  at("earlier").hidden = at("later").hidden = at("earlier").disabled && at("later").disabled;
  say(at("place"), labels.length ? `${count(first + 1)}–${count(first + labels.length)} of ${count(total)}` : "");
}
