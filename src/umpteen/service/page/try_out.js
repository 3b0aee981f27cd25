// A form that sends a request to this service and shows what comes back, as it came.

import * as api from "./api.js";
import { el, say } from "./dom.js";
import { withToken } from "./token.js";

const LONGEST = 20_000; // characters of an answer that are shown

/** The form of a route: a field for each parameter, and the body as it is sent. */
export function tryOut(method, path, operation, body, values) {
  const parameters = operation.parameters ?? [];
  const inputs = parameters.map((one) => [one, field(`${method}${path}-${one.name}`, one, values)]);
  const text = body === null ? null : el("textarea", { class: "body", spellcheck: "false", rows: String(Math.min(14, written(body).split("\n").length)), "aria-label": "Body" });
  if (text) text.value = written(body);
  const button = el("button", { type: "submit", class: "main" }, "Try it");
  const status = el("p", { class: "status", role: "status" });
  const shown = el("pre", { class: "scroll outcome", tabindex: "0", hidden: true, "aria-label": "What came back" });
  const submit = async (event) => {
    event.preventDefault();
    button.disabled = true;
    const began = performance.now();
    const outcome = await send(method, address(path, inputs), text?.value, Boolean(operation.security));
    button.disabled = false;
    say(status, outcome === null ? "Not sent." : `${outcome.status} · ${Math.max(1, Math.round(performance.now() - began))} ms`);
    status.classList.toggle("wrong", (outcome?.status ?? 200) >= 400);
    shown.hidden = outcome === null;
    say(shown, outcome?.content ?? "");
  };
  return el(
    "form",
    { class: "try", onsubmit: submit },
    inputs.map(([{ name, description }, input]) => el("div", { class: "parameter" }, el("label", { for: input.id }, el("code", {}, name)), input, description ? el("span", { class: "soft small" }, description) : null)),
    text ? [el("h3", { class: "heading" }, "Body"), text] : null,
    el("div", { class: "send" }, button, operation.security && method !== "get" ? el("span", { class: "soft small" }, "This changes the model.") : null, status),
    shown,
  );
}

function field(id, { name, schema = {} }, values) {
  const example = schema.default ?? values.of(schema, name);
  const choices = schema.enum ?? (schema.type === "boolean" ? [false, true] : null);
  if (!choices) return Object.assign(el("input", { id, autocomplete: "off", spellcheck: "false" }), { value: String(example ?? "") });
  return el("select", { id }, choices.map((one) => el("option", { value: String(one), selected: one === example }, String(one))));
}

/** The path with its parameters written in; relative, as all addresses of the page. */
function address(path, inputs) {
  const query = new URLSearchParams();
  let filled = path.replace(/^\//, "");
  for (const [{ name, in: where }, { value }] of inputs) {
    if (where === "path") filled = filled.replace(`{${name}}`, encodeURIComponent(value));
    else if (value !== "") query.set(name, value);
  }
  return query.size ? `${filled}?${query}` : filled;
}

async function send(method, path, body, guarded) {
  const attempt = async (token) => {
    const headers = token ? { Authorization: `Bearer ${token}` } : {};
    const response = await fetch(path, { method: method.toUpperCase(), headers: body ? { ...headers, "Content-Type": "application/json" } : headers, body, cache: "no-store" });
    if (guarded && response.status === 401) throw new api.ServiceError(401);
    return { status: response.status, content: cut(await response.text()) };
  };
  try {
    return guarded ? await withToken(attempt) : await attempt(null);
  } catch (error) {
    return { status: 0, content: error.message };
  }
}

function cut(text) {
  let shown = text;
  try {
    shown = written(JSON.parse(text));
  } catch {
    // it is not JSON, and shown as it came
  }
  return shown.length > LONGEST ? `${shown.slice(0, LONGEST)}\n…` : shown;
}

const written = (value) => JSON.stringify(value, null, 2);
