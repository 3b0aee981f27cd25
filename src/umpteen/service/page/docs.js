// The service's routes, from its OpenAPI document: what one sends, what comes back, and a way to try it.

import * as api from "./api.js";
import { at, el, say, sayOrHide } from "./dom.js";
import { told } from "./latest.js";
import { exampleOf } from "./schema.js";
import { tryOut } from "./try_out.js";

const METHODS = ["get", "post", "patch", "put", "delete"];

async function start() {
  try {
    const [document_, { name }, { labels }] = await Promise.all([
      api.ask("openapi.json"),
      api.model(),
      api.labels({ search: "", start: 0, count: 1, retired: false }),
    ]);
    say(at("model-name"), name);
    say(at("about"), `${document_.info.description} Version ${document_.info.version}.`);
    const values = exampleOf(document_.components.schemas, labels[0] ?? {});
    at("routes").replaceChildren(
      ...Object.entries(document_.paths).flatMap(([path, methods]) =>
        METHODS.filter((method) => method in methods).map((method) => route(method, path, methods[method], values))),
    );
    at("routes").querySelector("details").open = true;
  } catch (error) {
    if (error.passes === undefined) throw error;
    sayOrHide(at("docs-trouble"), told(error, null));
  }
}

function route(method, path, operation, values) {
  const body = operation.requestBody?.content?.["application/json"]?.schema;
  const answer = operation.responses["200"]?.content ?? {};
  return el(
    "details",
    { class: "route" },
    el(
      "summary",
      {},
      el("span", { class: `method ${method}` }, method.toUpperCase()),
      el("code", {}, path),
      el("span", { class: "soft" }, operation.summary),
      operation.security ? el("span", { class: "locked" }, "needs the token") : null,
    ),
    operation.description ? el("p", {}, plainly(operation.description)) : null,
    body ? fields(values.properties(body)) : null,
    tryOut(method, path, operation, body ? values.of(body) : null, values),
    Object.entries(answer).map(([kind, { schema }]) => [el("h3", { class: "heading" }, "Answer, for example"), el("pre", { class: "scroll", tabindex: "0" }, schema && kind.endsWith("json") ? JSON.stringify(values.of(schema), null, 2) : kind)]),
    refusals(operation.responses),
  );
}

/** What the fields of a body mean. */
function fields(properties) {
  const known = Object.entries(properties).filter(([, { description }]) => description);
  return known.length ? el("dl", { class: "facts" }, known.map(([name, { description }]) => [el("dt", {}, el("code", {}, name)), el("dd", {}, plainly(description))]).flat()) : null;
}

/** Text in which what stands between backquotes is code. */
const plainly = (text) => text.split("`").map((part, place) => (place % 2 ? el("code", {}, part) : part));

function refusals(responses) {
  const known = Object.entries(responses).filter(([status]) => status !== "200");
  if (!known.length) return null;
  return el(
    "details",
    {},
    el("summary", {}, "Why it may be refused"),
    el("dl", { class: "facts" }, known.map(([status, { description }]) => [el("dt", {}, el("code", {}, status)), el("dd", {}, plainly(description))]).flat()),
  );
}

start();
