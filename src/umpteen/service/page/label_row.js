// One label of the catalogue: its text, key and origin; renamed in place, retired, brought back.

import * as api from "./api.js";
import * as changes from "./changes.js";
import { el, sayOrHide } from "./dom.js";
import { plural } from "./format.js";
import { told } from "./latest.js";

export function rowOf(label, editable) {
  const row = el("li", { "data-key": label.key, class: label.retired ? "gone" : null });
  read(row, label, editable);
  return row;
}

/** The row as it is read. */
function read(row, label, editable) {
  const state = label.retired ? "retired" : label.origin;
  const problem = el("p", { class: "trouble", role: "alert", hidden: true });
  const button = (name, action) =>
    el("button", { type: "button", class: "plain", "aria-label": `${name} ${label.text}`, onclick: action }, name);
  let busy = false; // not `disabled`, which would take the focus away
  const attempt = async (change) => {
    if (busy) return;
    busy = true;
    sayOrHide(problem, "");
    try {
      await change();
    } catch (error) {
      sayOrHide(problem, told(error, null));
    }
    busy = false;
  };
  const actions = label.retired
    ? [button("Bring back", () => attempt(() => changes.add(label.key, label.text)))]
    : [
        button("Rename", () => write(row, label, editable)),
        button("Retire", () => attempt(() => changes.retire(label.key, label.text))),
      ];
  row.replaceChildren(
    el("span", { class: "text" }, label.text),
    el("span", { class: "about" }, el("span", { class: "key" }, label.key), el("span", { class: `origin ${state}` }, state), frequency(label)),
    ...(editable ? [el("span", { class: "actions" }, actions)] : []),
    problem,
  );
}

/** How many training texts have the label; a button that shows some of them. */
function frequency({ key, texts }) {
  if (texts === null || texts === undefined) return null;
  if (texts === 0) return el("span", {}, plural(texts, "training text"));
  const button = el("button", { type: "button", class: "plain frequency", "aria-expanded": "false" }, plural(texts, "training text"));
  button.addEventListener("click", async () => {
    const row = button.closest("li");
    const open = button.getAttribute("aria-expanded") === "true";
    button.setAttribute("aria-expanded", String(!open));
    row.querySelector(".texts")?.remove();
    if (open) return;
    const list = el("ul", { class: "texts", "aria-label": "Some of its training texts" });
    row.append(list);
    try {
      const found = await api.labelTexts(key);
      list.replaceChildren(...(found.texts.length ? found.texts : ["The model did not keep their texts."]).map((text) => el("li", {}, text)));
    } catch (error) {
      if (error.passes === undefined) throw error;
      list.replaceChildren(el("li", { class: "trouble", role: "alert" }, told(error, null)));
    }
  });
  return button;
}

/** The row while its text is being changed: Enter saves, Esc leaves it as it was. */
function write(row, label, editable) {
  const field = el("input", { value: label.text, "aria-label": `New text of ${label.text}`, required: true, autocomplete: "off" });
  const problem = el("p", { class: "trouble", role: "alert", hidden: true });
  const leave = (text) => {
    read(row, { ...label, text }, editable);
    row.querySelector("button")?.focus();
  };
  const submit = async (event) => {
    event.preventDefault();
    const text = field.value.trim();
    if (text === label.text) return leave(text);
    const buttons = row.querySelectorAll("button");
    for (const button of buttons) button.disabled = true;
    try {
      if (await changes.rename(label.key, text)) return leave(text);
    } catch (error) {
      sayOrHide(problem, told(error, null));
    }
    for (const button of buttons) button.disabled = false;
    return field.focus();
  };
  const form = el(
    "form",
    { onsubmit: submit, onkeydown: (event) => event.key === "Escape" && leave(label.text) },
    field,
    el("button", { type: "submit", class: "main" }, "Save"),
    el("button", { type: "button", onclick: () => leave(label.text) }, "Cancel"),
  );
  row.replaceChildren(form, problem);
  field.focus();
  field.select();
}
