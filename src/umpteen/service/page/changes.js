// One change to the labels: with the token, then told, and undone by one click.

import * as api from "./api.js";
import { told } from "./latest.js";
import { notice } from "./notice.js";
import { service } from "./service.js";
import { withToken } from "./token.js";

const COMPACTED = ["nothing_to_undo", "unknown_version"]; // the labels were, meanwhile: the list of versions is old

/** Makes the change; true when the service has it, false when it was given up. Throws ServiceError. */
async function changed(change, said, undoable = true) {
  const outcome = await withToken(change);
  if (outcome === null) return false;
  service.seen(outcome.version);
  notice(said, undoable ? () => undo() : null);
  return true;
}

export const add = (key, text) => changed((token) => api.add(key, text, token), ["Added ", text]);
export const rename = (key, text) => changed((token) => api.rename(key, text, token), ["Renamed to ", text]);
export const retire = (key, text) => changed((token) => api.retire(key, token), ["Retired ", text]);

/** Goes back to an older version, or by one step. */
export async function undo(version = null) {
  try {
    const said = version === null ? ["Undone", ""] : [`Back to version ${version}`, ""];
    return await changed((token) => api.undo(version, token), said, false);
  } catch (error) {
    notice([told(error, null), ""]);
    if (COMPACTED.includes(error.code)) service.load();
    return false;
  }
}
