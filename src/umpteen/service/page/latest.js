// The latest question wins: a newer one aborts the older, and a failure that may pass is asked again by itself.

const LONGEST_WAIT = 400; // ms someone who types without a pause waits for an answer
const LONGEST_RETRY = 8; // seconds

export class Latest {
  #timer = null;
  #controller = null;
  #waitingSince = null;
  #retry = null;

  /**
   * send(question, signal) → promise of an answer · answered(answer, question, milliseconds)
   * failed(error, seconds until it is asked again, or null if it is not)
   */
  constructor({ send, answered, failed }) {
    Object.assign(this, { send, answered, failed });
    addEventListener("online", () => this.#retry?.());
    document.addEventListener("visibilitychange", () => document.hidden || this.#retry?.());
  }

  /** Asks after a delay in ms, in which another question may take this one's place. */
  ask(question, delay = 0) {
    const since = this.#waitingSince ?? performance.now();
    this.cancel();
    this.#waitingSince = since;
    const left = since + LONGEST_WAIT - performance.now();
    this.#timer = setTimeout(() => this.#send(question, 0), Math.max(0, Math.min(delay, left)));
  }

  /** Forgets the question and its answer. */
  cancel() {
    clearTimeout(this.#timer);
    this.#controller?.abort();
    this.#controller = this.#waitingSince = this.#retry = null;
  }

  async #send(question, attempt) {
    this.cancel();
    const controller = (this.#controller = new AbortController());
    const start = performance.now();
    try {
      const answer = await this.send(question, controller.signal);
      if (!controller.signal.aborted) this.answered(answer, question, performance.now() - start);
    } catch (error) {
      if (controller.signal.aborted) return;
      if (error.passes === undefined) throw error; // a mistake in this page, not in the answer
      const seconds = untilAsked(error, attempt);
      if (seconds !== null) {
        this.#retry = () => this.#send(question, attempt + 1);
        this.#timer = setTimeout(this.#retry, 1000 * seconds);
      }
      this.failed(error, seconds);
    }
  }
}

/** Seconds until it is asked again, after so many failures before; null if it is not. */
export function untilAsked(error, attempt) {
  return error.passes ? (error.retryAfter ?? Math.min(LONGEST_RETRY, 2 ** attempt)) : null;
}

/** What is said of a failure, and what happens next. */
export function told(error, seconds) {
  const reason = error.message.charAt(0).toUpperCase() + error.message.slice(1);
  const sentence = /[.!?]$/.test(reason) ? reason : `${reason}.`;
  if (seconds === null) return sentence;
  return `${sentence} Asking again ${seconds <= 1 ? "in a moment" : `in ${Math.ceil(seconds)} seconds`}.`;
}
