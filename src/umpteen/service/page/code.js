// The question on the screen as a program asks it, and its answer as a program gets it.

import { at, el } from "./dom.js";
import { notice } from "./notice.js";

const KINDS = { curl: shell, python, json: (_, answer) => JSON.stringify(answer, null, 2) };
const NAMES = { curl: "curl", python: "Python", json: "JSON answer" };
let kind = "curl";
let shown = null; // { question, answer }

export function start() {
  at("code-kinds").replaceChildren(...Object.keys(KINDS).map((one) => el("button", { type: "button", "data-kind": one, onclick: () => choose(one) }, NAMES[one])));
  at("copy").addEventListener("click", copy);
}

/** Takes another question and its answer, or null for none. */
export function show(question, answer) {
  shown = answer === null ? null : { question, answer };
  at("code").hidden = shown === null;
  render();
}

function choose(one) {
  kind = one;
  render();
}

function render() {
  for (const button of at("code-kinds").children) button.setAttribute("aria-pressed", String(button.dataset.kind === kind));
  at("code-text").textContent = shown ? KINDS[kind](shown.question, shown.answer) : "";
}

async function copy() {
  const text = at("code-text").textContent;
  try {
    await navigator.clipboard.writeText(text);
    notice(["Copied: ", NAMES[kind]]);
  } catch {
    getSelection().selectAllChildren(at("code-text")); // browsers keep the clipboard from pages that came without TLS
    notice(["Selected; copy it with Ctrl-C", ""]);
  }
}

const address = () => new URL("predict", document.baseURI).href;

function shell(question) {
  const quoted = JSON.stringify(question).replaceAll("'", "'\\''");
  return `curl -s ${address()} -H 'Content-Type: application/json' \\\n  -d '${quoted}'`;
}

function python(question) {
  return [
    "import json",
    "from urllib.request import Request, urlopen",
    "",
    `question = ${JSON.stringify(question)}`,
    `request = Request("${address()}", json.dumps(question).encode(), {"Content-Type": "application/json"})`,
    'for label in json.load(urlopen(request))["results"][0]["labels"]:',
    '    print(label["key"], label["text"], label["probability"] or label["score"])',
  ].join("\n");
}
