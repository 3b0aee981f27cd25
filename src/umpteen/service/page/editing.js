// What stands above the list: a form for a new label, or how a service that can be changed is started.

import * as changes from "./changes.js";
import { at, el, sayOrHide } from "./dom.js";
import { told } from "./latest.js";

let state = null; // what was built last

/** `added` is called with the key of a label that was added. */
export function adapt(editable, added) {
  if (state === editable) return;
  state = editable;
  at("editing").replaceChildren(editable ? form(added) : readOnly());
}

function readOnly() {
  return el(
    "p",
    { class: "note" },
    "Labels can be read here, not changed. To change them, start the service with a token: ",
    el("code", {}, "umpteen serve MODEL --token-file FILE"),
  );
}

function form(added) {
  const text = el("input", { id: "new-text", required: true, autocomplete: "off", placeholder: "What the label means" });
  const key = el("input", { id: "new-key", required: true, autocomplete: "off", spellcheck: "false", placeholder: "from the text" });
  const problem = el("p", { class: "trouble", role: "alert", hidden: true });
  const button = el("button", { type: "submit", class: "main" }, "Add label");
  let own = false; // the person wrote a key
  key.addEventListener("input", () => (own = key.value !== ""));
  text.addEventListener("input", () => own || (key.value = keyFor(text.value)));
  const submit = async (event) => {
    event.preventDefault();
    button.disabled = true;
    sayOrHide(problem, "");
    try {
      if (await changes.add(key.value.trim(), text.value.trim())) {
        added(key.value.trim());
        text.value = key.value = "";
        own = false;
        text.focus();
      }
    } catch (error) {
      sayOrHide(problem, told(error, null));
      (error.field?.endsWith("key") ? key : text).focus();
    }
    button.disabled = false;
  };
  return el(
    "form",
    { class: "add", onsubmit: submit, "aria-label": "Add a label" },
    el("div", { class: "wide" }, el("label", { for: "new-text" }, "New label"), text),
    el("div", {}, el("label", { for: "new-key" }, "Key"), key),
    button,
    problem,
  );
}

/** A key that can stand in an address: letters and digits of any script, joined by hyphens. */
export function keyFor(text) {
  const parts = text.normalize("NFKC").toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? [];
  return parts.join("-").slice(0, 60).replace(/-$/, "");
}
