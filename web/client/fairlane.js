// Submits tasks to a Fairlane gateway and follows them, in browsers and in Node. fairlane.d.ts describes every name.

const TERMINAL = new Set(["done", "error", "cancelled"]);
const WORTH_A_RETRY = new Set([408, 425, 429, 502, 503, 504]);
const CALL_MS = 20_000;
const SILENCE_MS = 45_000; // the gateway says something every 12 s
const RETRY_MS = 500;
const LONGEST_PAUSE_MS = 15_000;
const LATE = "The gateway did not answer in time";
const AWAY = "The gateway cannot be reached";

export class FairlaneError extends Error {
  constructor(kind, code, message, { category = "", status = 0, retryable = false, retryAfterMs = null, taskId = null, fields = {}, cause } = {}) {
    super(message, cause && { cause });
    this.name = "FairlaneError";
    this.kind = kind;
    this.code = code;
    this.category = category;
    this.status = status;
    this.retryable = retryable;
    this.retryAfterMs = retryAfterMs;
    this.taskId = taskId;
    this.fields = fields;
  }
}

// ---- calls ----------

export class Fairlane {
  constructor({ baseUrl = globalThis.location?.origin, key = "", headers = {}, timeoutMs = CALL_MS, fetch = globalThis.fetch } = {}) {
    if (!baseUrl) throw new TypeError("baseUrl is missing: the gateway's address");
    this.baseUrl = String(baseUrl).replace(/\/+$/, "");
    this._headers = key ? { ...headers, Authorization: `Bearer ${key}` } : headers;
    this._timeoutMs = timeoutMs;
    this._fetch = fetch;
  }

  submit(body, options) {
    return this._submit("/api/openai", body, options);
  }

  submitTask(task, options) {
    return this._submit("/api/tasks", task, options);
  }

  poll(taskId, options) {
    return this._call("GET", `/api/task/${encodeURIComponent(taskId)}`, undefined, options);
  }

  cancel(taskId, options) {
    return this._call("POST", `/api/task/${encodeURIComponent(taskId)}/cancel`, undefined, options);
  }

  /** Poll until the task has ended. */
  async result(taskId, { signal, onStatus = () => {}, maxRetries = 30, retryMs = RETRY_MS } = {}) {
    for (let failures = 0; ; ) {
      let pauseMs;
      try {
        const task = await this.poll(taskId, { signal });
        failures = 0;
        onStatus(task);
        if (task.status === "completed") return task.result;
        if (task.status === "failed") throw failed(taskId, task);
        if (task.status === "cancelled") throw cancelled(taskId);
        pauseMs = task.pollAfterMs;
      } catch (error) {
        failures += 1;
        if (!comesBack(error) || failures > maxRetries) throw error;
        pauseMs = pauseAfter(failures, retryMs, error);
      }
      await pause(pauseMs, signal);
    }
  }

  follow(taskId, options = {}) {
    return follow(this._eventsOf(taskId), this._reading(options));
  }

  watch(taskId, onTask, options = {}) {
    return watch(this._eventsOf(taskId), onTask, this._reading(options));
  }

  _eventsOf(taskId) {
    return `${this.baseUrl}/api/task/${encodeURIComponent(taskId)}/events`;
  }

  _reading(options) {
    return { fetch: this._fetch, timeoutMs: this._timeoutMs, ...options, headers: { ...this._headers, ...options.headers } };
  }

  async _submit(path, body, { user, tier, idempotencyKey, headers = {}, signal } = {}) {
    const named = { ...headers };
    if (user !== undefined) named["X-Fairlane-User"] = user;
    if (tier !== undefined) named["X-Fairlane-Tier"] = tier;
    if (idempotencyKey !== undefined) named["Idempotency-Key"] = idempotencyKey;
    const accepted = await this._call("POST", path, { stream: true, ...body, async: true }, { headers: named, signal });
    return { ...accepted, streamUrl: this.baseUrl + accepted.streamUrl };
  }

  _call(method, path, body, { headers = {}, signal } = {}) {
    return request(this.baseUrl + path, { method, body, headers: { ...this._headers, ...headers }, signal, timeoutMs: this._timeoutMs, fetch: this._fetch });
  }
}

export async function request(url, options = {}) {
  const { body, method = body === undefined ? "GET" : "POST", headers = {}, signal } = options;
  const { timeoutMs = CALL_MS, fetch = globalThis.fetch, read = response => arriving(response.json(), "The answer broke off") } = options;
  const all = { Accept: "application/json", ...headers };
  if (body !== undefined) all["Content-Type"] = "application/json";
  const limit = new Limit(signal);
  try {
    limit.set(timeoutMs, LATE);
    const sent = { method, headers: all, body: body === undefined ? undefined : JSON.stringify(body), cache: "no-store", signal: limit.signal };
    const response = await arriving(fetch(url, sent), AWAY);
    if (!response.ok) throw await refusal(response);
    return await read(response);
  } catch (error) {
    throw limit.reason ?? error;
  } finally {
    limit.close();
  }
}

// ---- following one task ----------

export async function* follow(url, options = {}) {
  const { signal, headers = {}, lastEventId = "", onConnection = () => {}, renew, maxRetries = 30 } = options;
  const { retryMs = RETRY_MS, silenceMs = SILENCE_MS, timeoutMs = CALL_MS, fetch = globalThis.fetch } = options;
  let lastId = lastEventId;
  let failures = 0;
  for (let renewed = false; ; ) {
    signal?.throwIfAborted();
    let pauseMs = null;
    let problem = null;
    const limit = new Limit(signal);
    onConnection("connecting", null);
    try {
      limit.set(timeoutMs, LATE);
      const all = { Accept: "text/event-stream", ...headers };
      if (lastId) all["Last-Event-ID"] = lastId;
      const response = await arriving(fetch(url, { headers: all, signal: limit.signal, cache: "no-store" }), AWAY);
      if (response.status === 204) return; // the end has been seen
      if (!response.ok) throw await refusal(response);
      if (!response.headers.get("content-type")?.startsWith("text/event-stream")) {
        throw broken("NO_STREAM", "What answered is not the gateway");
      }
      onConnection("open", null);
      renewed = false;
      const listening = () => limit.set(silenceMs, "The stream fell silent");
      listening();
      for await (const { id, event, data } of readEvents(response.body, listening)) {
        limit.set(0); // while the reader works it is not the gateway that is silent
        failures = 0;
        if (id !== null) lastId = id; // that of `restart` is empty: what was seen is to be forgotten
        const parsed = { id: id || null, event, data: JSON.parse(data) };
        yield parsed;
        if (TERMINAL.has(event)) return;
        if (event === "bye") {
          pauseMs = parsed.data.reconnectMs;
          break;
        }
        listening();
      }
      if (pauseMs === null) throw broken("NETWORK", "The connection ended");
    } catch (error) {
      problem = limit.reason ?? error;
      if (problem.status === 401 && renew && !renewed) {
        renewed = true; // once: a new link that is rejected as well is no use
        const link = await Promise.resolve().then(renew).catch(() => "");
        if (!link) throw problem;
        url = link;
        continue;
      }
      failures += 1;
      if (!comesBack(problem) || failures > maxRetries) throw problem;
      pauseMs = pauseAfter(failures, retryMs, problem);
    } finally {
      limit.close();
    }
    onConnection("lost", problem);
    await pause(pauseMs, signal);
  }
}

export function watch(url, onTask, options = {}) {
  const stop = new AbortController();
  let task = INITIAL;
  const show = changed => onTask((task = changed));
  const read = async () => {
    const onConnection = (connection, problem) => show({ ...task, connection, problem });
    try {
      for await (const event of follow(url, { ...options, onConnection, signal: stop.signal })) {
        if (stop.signal.aborted) return;
        show(fold(task, event));
      }
      show({ ...task, connection: "ended", problem: null });
    } catch (error) {
      if (stop.signal.aborted) return;
      if (!(error instanceof FairlaneError)) throw error; // a bug in `onTask`: seen as an unhandled rejection
      show({ ...task, connection: "ended", problem: null, error });
    }
  };
  read();
  return () => stop.abort();
}

// ---- what a task's events make up ----------

const NOTHING_YET = Object.freeze({
  text: "",
  choices: Object.freeze([]),
  progress: null,
  stage: null,
  usage: null,
  finishReason: null,
  result: undefined,
  error: null,
});

export const INITIAL = Object.freeze({
  taskId: null,
  status: "queued",
  position: null,
  estimatedWaitMs: null,
  estimatedWaitLowMs: null,
  estimatedWaitHighMs: null,
  attempt: null,
  model: null,
  queue: null,
  metadata: undefined,
  cancelledBy: null,
  stages: Object.freeze([]),
  failedStage: null,
  ...NOTHING_YET,
  connection: "connecting",
  problem: null,
});

const PLACE = ["position", "estimatedWaitMs", "estimatedWaitLowMs", "estimatedWaitHighMs"];
const NO_PLACE = Object.fromEntries(PLACE.map(name => [name, null]));

export function fold(task, { event, data }) {
  switch (event) {
    case "queued":
      return { ...task, ...Object.fromEntries(PLACE.map(name => [name, data[name] ?? null])), taskId: data.taskId, status: "queued" };
    case "start": {
      const { taskId, attempt, model, queue, metadata } = data;
      const begun = { ...task, ...NOTHING_YET, ...NO_PLACE, taskId, attempt, model, queue, metadata, status: "executing" };
      return data.stage ? withStage(begun, { name: data.stage, index: data.index, status: "executing" }) : { ...begun, stages: [] };
    }
    case "chunk":
      return withChunk(task, data);
    case "progress":
      return { ...task, progress: { pct: data.pct ?? null, note: data.note ?? null } };
    case "stage":
      return withStage({ ...task, stage: { name: data.name, index: data.index, of: data.of, status: data.status } }, data);
    case "usage":
      return { ...task, usage: data.usage };
    case "done":
      return {
        ...ended(task, data, "completed"),
        text: textOf(data.result) ?? task.text,
        result: data.result,
        finishReason: data.finishReason ?? task.finishReason,
      };
    case "error":
      return { ...ended(task, data, "failed"), error: failed(data.taskId, data) };
    case "cancelled":
      return { ...ended(task, data, "cancelled"), error: cancelled(data.taskId), cancelledBy: data.by };
    case "restart":
      return { ...INITIAL, taskId: task.taskId, connection: task.connection, problem: task.problem };
    default: // gap, bye, debug, and what a newer gateway may send
      return task;
  }
}

export function textOf(result) {
  if (typeof result === "string") return result;
  const choice = result?.choices?.[0];
  const content = choice ? (choice.message?.content ?? choice.text) : result?.content;
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return undefined;
  return content.map(part => (typeof part?.text === "string" ? part.text : "")).join("");
}

function ended(task, data, status) {
  const { taskId, usage = task.usage, metadata = task.metadata } = data;
  const stages = data.stages?.map((stage, at) => ({ ...stage, index: at + 1 })) ?? task.stages;
  return { ...task, ...NO_PLACE, taskId, status, usage, metadata, stages, failedStage: data.failedStage ?? null };
}

// A stage is reported by its number: one that begins again replaces what was reported of it before.
function withStage(task, { name, index, status, usage }) {
  const others = task.stages.filter(stage => stage.index !== index);
  const stages = [...others, { name, index, status, ...(usage === undefined ? {} : { usage }) }];
  return { ...task, stages: stages.sort((a, b) => a.index - b.index) };
}

const FRESH_CHOICE = { text: "", reasoning: "", refusal: "", toolCalls: [], finishReason: null };

function withChunk(task, { index, kind, delta }) {
  const choices = [...task.choices];
  while (choices.length <= index) choices.push(FRESH_CHOICE);
  const choice = { ...choices[index] };
  choices[index] = choice;
  if (kind === "text" || kind === "reasoning" || kind === "refusal") choice[kind] += delta;
  else if (kind === "tool") choice.toolCalls = withToolCalls(choice.toolCalls, delta);
  else if (kind === "finish") choice.finishReason = delta;
  return { ...task, choices, text: choices[0].text, finishReason: choices[0].finishReason };
}

function withToolCalls(calls, deltas) {
  const all = [...calls];
  for (const { index = 0, id, type, function: called } of deltas) {
    while (all.length <= index) all.push({ id: "", type: "function", function: { name: "", arguments: "" } });
    const { id: oldId, type: oldType, function: old } = all[index];
    all[index] = {
      id: id ?? oldId,
      type: type ?? oldType,
      function: { name: old.name + (called?.name ?? ""), arguments: old.arguments + (called?.arguments ?? "") },
    };
  }
  return all;
}

// ---- server-sent events ----------

export async function* readEvents(body, onBytes = () => {}) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let begun = []; // the pieces of a line whose end has not come
  let frame = { id: null, event: "message", data: [] };
  try {
    for (;;) {
      const { done, value } = await arriving(reader.read(), "The connection broke");
      if (done) return; // what has no end is not an event
      onBytes();
      const lines = value.split("\n");
      for (let at = 0; at < lines.length - 1; at += 1) {
        let line = begun.length ? begun.join("") + lines[at] : lines[at];
        begun = [];
        if (line.endsWith("\r")) line = line.slice(0, -1);
        if (line === "") {
          if (frame.data.length) yield { ...frame, data: frame.data.join("\n") };
          frame = { id: null, event: "message", data: [] };
          continue;
        }
        const colon = line.indexOf(":");
        if (colon === 0) continue; // a comment, which says that the connection lives
        const name = colon < 0 ? line : line.slice(0, colon);
        const text = colon < 0 ? "" : line.slice(colon + (line[colon + 1] === " " ? 2 : 1));
        if (name === "data") frame.data.push(text);
        else if (name === "event") frame.event = text;
        else if (name === "id") frame.id = text;
      }
      if (lines.at(-1)) begun.push(lines.at(-1));
    }
  } finally {
    reader.cancel().catch(() => {}); // already broken
  }
}

// ---- errors, time ----------

const failed = (taskId, { error, code, category = "", retryable = false }) => new FairlaneError("failed", code, error, { category, retryable, taskId });
const cancelled = taskId => new FairlaneError("cancelled", "CANCELLED", "The task was cancelled", { category: "cancelled", taskId });
const broken = (code, message, cause) => new FairlaneError("network", code, message, { retryable: true, cause });

/** What an answer says that is no success. */
async function refusal(response) {
  const body = await response.json().catch(() => null); // a proxy's page, or cut off
  const native = typeof body?.error === "string";
  const exact = Number(response.headers.get("retry-after-ms")) || Number(response.headers.get("retry-after")) * 1000;
  return new FairlaneError(
    "refused",
    (native ? body.code : body?.error?.code) ?? `HTTP_${response.status}`,
    (native ? body.error : body?.error?.message) ?? `The gateway answered ${response.status}`,
    {
      category: native ? (body.category ?? "") : "",
      status: response.status,
      retryable: WORTH_A_RETRY.has(response.status) && response.headers.get("x-should-retry") !== "false",
      retryAfterMs: exact || null,
      taskId: body?.taskId ?? response.headers.get("x-task-id"),
      fields: body?.fields,
    },
  );
}

/** `promise`, whose failure is the connection's. */
async function arriving(promise, sentence) {
  try {
    return await promise;
  } catch (error) {
    throw broken("NETWORK", sentence, error);
  }
}

/** Whether another reading may go better: the gateway is unavailable, or the error says so. The end of a task stays as it is. */
const comesBack = error =>
  error instanceof FairlaneError && error.retryable && (error.kind === "network" || error.kind === "refused");

/** 0.5 s, 1, 2, 4, 8, 15; a random part of it, so that clients spread; and as long as the gateway asks for. */
const pauseAfter = (failures, retryMs, { retryAfterMs }) =>
  Math.max(Math.min(retryMs * 2 ** (failures - 1), LONGEST_PAUSE_MS) * (0.5 + Math.random() / 2), retryAfterMs ?? 0);

function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const abort = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", abort);
      resolve();
    }, ms);
    if (signal?.aborted) abort();
    else signal?.addEventListener("abort", abort, { once: true });
  });
}

/** What a call is ended by: the caller's signal, or a time limit. `reason` is that of the first one that ended it. */
class Limit {
  constructor(signal) {
    this._ends = new AbortController();
    this._outer = signal;
    this._timer = 0;
    this._abort = () => this._end(signal.reason);
    this.signal = this._ends.signal;
    this.reason = null;
    if (signal?.aborted) this._abort();
    else signal?.addEventListener("abort", this._abort);
  }

  /** So long from now on; 0: for ever. */
  set(ms, sentence) {
    clearTimeout(this._timer);
    if (ms) this._timer = setTimeout(() => this._end(broken("TIMEOUT_HERE", sentence)), ms);
  }

  /** Nothing is left: no timer, and not the connection either. */
  close() {
    clearTimeout(this._timer);
    this._outer?.removeEventListener("abort", this._abort);
    this._ends.abort();
  }

  _end(reason) {
    this.reason ??= reason;
    this._ends.abort();
  }
}
