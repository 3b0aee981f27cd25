// Names and values of whatever a report, a certificate or a model tells.

import { el } from "./dom.js";
import { brief, bytes, words } from "./format.js";

/** A list of definitions; what is null is left out, an object becomes lines. */
export function definitions(content) {
  const known = Object.entries(content).filter(([, value]) => value !== null && value !== undefined);
  return el("dl", { class: "facts" }, known.map(([name, value]) => [el("dt", {}, words(name)), el("dd", {}, written(name, value))]).flat());
}

function written(name, value) {
  if (typeof value !== "object" || Array.isArray(value)) return plain(name, value);
  return el("ul", {}, Object.entries(value).map(([inner, content]) => el("li", {}, `${words(inner)}: ${plain(inner, content)}`)));
}

const plain = (name, value) => (typeof value === "number" && /bytes/.test(name) ? bytes(value) : brief(value));
