// What the page knows of the service: its model, and the newest catalogue version anyone told it of.

import * as api from "./api.js";
import { Latest } from "./latest.js";

const STALE = 250; // ms until a worker that lags behind is asked again
const SPREADING = 3000; // ms after a change in which another worker may still answer from before it

/** Sends "model" and "report" when facts about the model arrived and "catalogue" when labels changed. */
class Service extends EventTarget {
  model = null;
  report = null;
  version = null;
  trouble = null; // why there is no model yet
  #changed = -Infinity;

  #asking = new Latest({
    send: (_, signal) => api.model(signal),
    answered: (model) => {
      if (!this.seen(model.version)) return this.#asking.ask(null, STALE);
      this.model = model;
      api.wait(model.timeouts);
      this.trouble = null;
      this.#reporting.ask(null);
      return this.dispatchEvent(new Event("model"));
    },
    failed: (error, seconds) => {
      this.trouble = { error, seconds };
      this.dispatchEvent(new Event("trouble"));
    },
  });

  #reporting = new Latest({
    send: (_, signal) => api.report(signal),
    answered: (report) => {
      this.report = report;
      this.dispatchEvent(new Event("report"));
    },
    failed: (error, seconds) => this.dispatchEvent(new CustomEvent("report-trouble", { detail: { error, seconds } })),
  });

  load() {
    this.#asking.ask(null);
  }

  /** Takes note of the version of an answer; false for one from just before a change that is known already. */
  seen(version) {
    const now = performance.now();
    if (version < this.version && now < this.#changed + SPREADING) return false;
    if (version === this.version) return true;
    const first = this.version === null;
    this.version = version;
    if (first) return true;
    this.#changed = now;
    this.load();
    this.dispatchEvent(new Event("catalogue"));
    return true;
  }
}

export const service = new Service();
