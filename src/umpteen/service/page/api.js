// The service over HTTP. Addresses are relative to the page, so that it also works behind a proxy under a path.

const ON_THE_WAY = 10_000; // ms that a question and its answer may travel: the service itself says first if it gives up
const patience = { answer: 10_000, change: 60_000 }; // ms, until the service has told how long it may take

/** How many seconds the service may take, as GET /model tells. */
export function wait(seconds = {}) {
  for (const [what, given] of Object.entries(seconds)) patience[what] = 1000 * given;
}

/** The service refused, or did not answer; `passes` says whether asking again later can help. */
export class ServiceError extends Error {
  constructor(status, { code = "", reason = "", field = null } = {}, retryAfter = null) {
    super(reason || REASONS[status] || `The service answered with status ${status}.`);
    this.status = status;
    this.code = code;
    this.field = field;
    this.retryAfter = retryAfter; // seconds
    this.passes = [0, 429, 500, 502, 503, 504].includes(status);
  }
}

const REASONS = {
  0: "The service does not answer.",
  401: "The token was not accepted.",
  413: "This is too long for the service.",
  429: "The service is busy.",
  502: "The service does not answer.",
  503: "The service is not ready.",
  504: "The service took too long.",
};

/** What the service answers, as an object; throws ServiceError, or AbortError when `signal` said so. */
export async function ask(path, { method = "GET", body, token, signal, what = "answer" } = {}) {
  const headers = { Accept: "application/json" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (token) headers.Authorization = `Bearer ${token}`;
  const limit = AbortSignal.timeout(patience[what] + ON_THE_WAY);
  let response;
  let content;
  try {
    response = await fetch(path, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: signal ? AbortSignal.any([signal, limit]) : limit,
      cache: "no-store",
      credentials: "same-origin",
    });
    content = await response.json().catch(() => null);
  } catch (error) {
    if (signal?.aborted) throw error;
    const reason = what === "change" ? "The service has not answered; the change may still be made" : "";
    throw limit.aborted ? new ServiceError(504, { reason }) : new ServiceError(0);
  }
  if (signal?.aborted) throw new DOMException("a newer question was asked", "AbortError");
  if (response.ok && content !== null) return content;
  const wait = Number.parseFloat(response.headers.get("Retry-After"));
  throw new ServiceError(response.ok ? 502 : response.status, content?.error, Number.isFinite(wait) ? wait : null);
}

export const predict = (question, signal) => ask("predict", { method: "POST", body: question, signal });

export const explain = (question, signal) => ask("explain", { method: "POST", body: question, signal });

export const labels = ({ search, start, count, retired, sort = "" }, signal) =>
  ask(`labels?${new URLSearchParams({ search, start, count, retired, ...(sort ? { sort } : {}) })}`, { signal });

export const labelTexts = (key, signal) => ask(`labels/texts?${new URLSearchParams({ key })}`, { signal });
export const history = (signal) => ask("labels/history", { signal });
export const model = (signal) => ask("model", { signal });
export const report = (signal) => ask("report", { signal });

export const add = (key, text, token) => change("labels", "POST", token, { labels: [{ key, text }] });
export const rename = (key, text, token) => change(label(key), "PATCH", token, { text });
export const retire = (key, token) => change(label(key), "DELETE", token);
export const undo = (version, token) => change("labels/undo", "POST", token, version === null ? {} : { to_version: version });

export const learn = (examples, token) => change("examples", "POST", token, { examples, note: "from the page" });
export const unlearn = (token) => change("examples/undo", "POST", token);
export const examples = (limit, token, signal) => ask(`examples?${new URLSearchParams({ limit })}`, { token, signal });

const change = (path, method, token, body) => ask(path, { method, body, token, what: "change" });
const label = (key) => `labels/${encodeURIComponent(key)}`;
