// The token that label changes need: asked for once, kept for this tab only.

import { at, say } from "./dom.js";

const PLACE = "umpteen.token";
let memory = null; // where session storage is forbidden

export function kept() {
  try {
    return sessionStorage.getItem(PLACE);
  } catch {
    return memory;
  }
}

export function keep(token) {
  memory = token;
  try {
    if (token === null) sessionStorage.removeItem(PLACE);
    else sessionStorage.setItem(PLACE, token);
  } catch {
    // it stays in memory
  }
}

/** Runs change(token), asking for the token as long as there is none or it is refused; null if the person gives up. */
export async function withToken(change) {
  let reason = "Changes need the token that the service was started with.";
  for (;;) {
    const token = kept() ?? (await asked(reason));
    if (token === null) return null;
    try {
      const outcome = await change(token);
      keep(token);
      return outcome;
    } catch (error) {
      if (error.status !== 401) throw error;
      keep(null);
      reason = "That token was not accepted. Was it copied whole?";
    }
  }
}

function asked(reason) {
  const dialog = at("token-dialog");
  const form = dialog.querySelector("form");
  const refused = reason.startsWith("That");
  say(at("token-reason"), reason);
  at("token-reason").classList.toggle("wrong", refused);
  at("token").value = "";
  at("token").setAttribute("aria-invalid", String(refused));
  at("token").setAttribute("aria-describedby", "token-reason");
  return new Promise((resolve) => {
    const done = new AbortController();
    const { signal } = done;
    const end = (token) => {
      done.abort();
      dialog.close();
      resolve(token);
    };
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      end(at("token").value.trim() || null);
    }, { signal });
    at("token-cancel").addEventListener("click", () => end(null), { signal });
    dialog.addEventListener("cancel", () => end(null), { signal }); // Esc
    dialog.showModal();
    at("token").focus();
  });
}
