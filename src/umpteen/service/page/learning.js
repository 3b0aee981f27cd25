// Corrections on their way to the model: with the token, told, and undone by one click.

import * as api from "./api.js";
import { inWords } from "./judging.js";
import { told } from "./latest.js";
import { notice } from "./notice.js";
import { service } from "./service.js";
import { withToken } from "./token.js";

/** Teaches one example; true when the model has it, false when it was given up. Throws ServiceError. */
export async function learn(example, undone = () => {}) {
  const outcome = await withToken((token) => api.learn([example], token));
  if (outcome === null) return false;
  notice(["Learnt: ", inWords(example)], () => undo(undone));
  service.dispatchEvent(new Event("learnt"));
  return true;
}

/** Forgets what was learnt last. */
export async function undo(undone = () => {}) {
  try {
    if ((await withToken((token) => api.unlearn(token))) === null) return;
    notice(["Undone: what was learnt last counts no more", ""]);
    undone();
    service.dispatchEvent(new Event("learnt"));
  } catch (error) {
    if (error.passes === undefined) throw error;
    notice([told(error, null), ""]);
  }
}
