// Calls the gateway. The key is kept for this tab alone and travels in a header; it never stands in a URL.

import { has, t } from "./i18n.js";
import { duration } from "./format.js";

const STORE = "fairlane.key";
let key = read();

function read() {
  try {
    return sessionStorage.getItem(STORE) ?? "";
  } catch {
    return "";
  }
}

/** The key in use, "" for none. */
export const getKey = () => key;

/** The header that shows a key, by default the one in use; {} for none. */
export const authorization = (as = key) => (as ? { Authorization: `Bearer ${as}` } : {});

/** Use this key from now on, "" for none. The page's `refresh` then finds out whose it is. */
export function setKey(value) {
  key = value.trim();
  try {
    if (key) sessionStorage.setItem(STORE, key);
    else sessionStorage.removeItem(STORE);
  } catch {
    // storage is switched off: the key holds until the page is left
  }
}

/**
 * What went wrong with a call. `status` 0: no answer came (`code` NETWORK or TIMEOUT_HERE). `message` is the gateway's sentence;
 * `explain` says it in the reader's language.
 */
export class Problem extends Error {
  constructor(status, code, message, { retryAfterMs = null, taskId = null, fields = {}, changes = false } = {}) {
    super(message);
    this.name = "Problem";
    this.status = status;
    this.code = code;
    this.retryAfterMs = retryAfterMs;
    this.taskId = taskId;
    this.fields = fields; // of several: what is wrong with each
    this.changes = changes; // the call was one that changes something
  }
}

/** A failure code and the gateway's sentence, for the reader. Unknown codes keep the gateway's own words. */
export function explainCode(code, sentence) {
  return code && has(`error.${code}`) ? t(`error.${code}`) : sentence || code || "";
}

/** A problem in a sentence or two, in the reader's language. */
export function explain(problem) {
  if (!(problem instanceof Problem)) return String(problem?.message ?? problem);
  const unknown = `error.${problem.code}.changes`; // where it is not known whether the change was made
  const said = problem.changes && has(unknown) ? t(unknown) : explainCode(problem.code, problem.message);
  return problem.retryAfterMs ? `${said} ${t("error.retry", { wait: duration(problem.retryAfterMs) })}` : said;
}

/** What a call throws for an error of the browser; `signal`: the call's. */
function problemOfBrowser(error, signal, sentence) {
  if (!signal?.aborted) return new Problem(0, "NETWORK", sentence);
  return signal.reason.name === "TimeoutError" ? new Problem(0, "TIMEOUT_HERE", "The gateway did not answer in time") : error;
}

/**
 * The response to a call whose status is a success. `body`: anything JSON; `headers`: more of them; `signal` ends it; `as`: another key
 * than the one in use. Throws Problem, and AbortError when `signal` says so.
 */
export async function send(path, { method, body, headers = {}, signal, as = key } = {}) {
  const all = { Accept: "application/json", ...headers, ...authorization(as) };
  if (body !== undefined) all["Content-Type"] = "application/json";
  const verb = method ?? (body === undefined ? "GET" : "POST");
  let response;
  try {
    response = await fetch(path, {
      method: verb,
      headers: all,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
    });
  } catch (error) {
    throw problemOfBrowser(error, signal, "The gateway cannot be reached");
  }
  if (response.ok) return response;
  throw await problemOf(response, verb !== "GET");
}

/** The JSON of a call's answer, read within `timeoutMs`. Throws like `send`. */
export async function call(path, { timeoutMs = 20_000, signal, ...options } = {}) {
  const either = AbortSignal.any([AbortSignal.timeout(timeoutMs), ...(signal ? [signal] : [])]);
  const response = await send(path, { ...options, signal: either });
  try {
    return await response.json();
  } catch (error) {
    throw problemOfBrowser(error, either, "The answer broke off");
  }
}

async function problemOf(response, changes) {
  let body = null;
  try {
    body = await response.json();
  } catch {
    // not one of the gateway's answers: a proxy's page, or cut off
  }
  return problemFrom(response.status, name => response.headers.get(name), body, changes);
}

/** The problem of an answer: its status, its headers by name, and its JSON (null where it is none). */
function problemFrom(status, header, body, changes) {
  const exact = Number(header("retry-after-ms")) || Number(header("retry-after")) * 1000;
  const native = typeof body?.error === "string";
  return new Problem(
    status,
    (native ? body.code : body?.error?.code) ?? `HTTP_${status}`,
    (native ? body.error : body?.error?.message) ?? `The gateway answered ${status}`,
    { retryAfterMs: exact || null, taskId: body?.taskId ?? header("x-task-id"), fields: body?.fields, changes },
  );
}

/**
 * The client that the page is for the gateway: { user, tier, key, open, delegating, admin, tiers, modes, version }; null when a key is needed and
 * there is none, or a wrong one. Throws Problem for anything else.
 */
export async function whoAmI(options = {}) {
  try {
    return await call("/api/me", options);
  } catch (problem) {
    if (problem instanceof Problem && problem.status === 401) return null;
    throw problem;
  }
}
