// Server-sent events: a task's log by EventSource, and any stream by fetch where a header must be sent.

import { Problem, send } from "./api.js";

const LOGGED = new Set(["start", "chunk", "stage", "usage", "permit", "debug", "done", "error", "cancelled"]);
const UNLOGGED = ["queued", "progress", "gap", "restart", "bye"];
const TERMINAL = new Set(["done", "error", "cancelled"]);
const MAX_TRIES = 30;
const LONGEST_PAUSE_MS = 15_000;

/** The number of an event in its log, as people read it: an id is opaque but for the count behind its dash; "–" for none. */
export const numberOf = id => id.slice(id.indexOf("-") + 1) || "–";

/** When to retry after this number of failures: 0.5 s, 1, 2, 4, 8, 15, a random part of it. */
const pauseMs = failures => Math.min(500 * 2 ** failures, LONGEST_PAUSE_MS) * (0.5 + Math.random() / 2);

/**
 * Reads one task's events to its end, whatever breaks on the way.
 *
 * The browser's EventSource comes back by itself with the header Last-Event-ID. Where it gives up for good (an answer that is
 * no stream: a proxy's error page, a gateway that is just starting) this asks why, and begins a new one after the same event.
 * Every event is handed over once and in order: the ids count without a gap, so what was seen is known, and `missing` and
 * `doubled` say whether the promise was kept.
 *
 * `onEvent({ id, event, data })`: `id` null for events that are not in the log. `restart` means: discard what you have. Its frame has
 * an empty id, so the browser forgets the last one; and if the link itself names one, another EventSource begins without it.
 * `onState(state, problem)`: connecting, open, lost (comes back by itself), cut (by `cut`), ended, refused (for good; why).
 * `renew()`: a promise of another link, for when this one has expired, as after a long sleep; it may fail or return none.
 */
export class Follower {
  constructor(url, { onEvent, onState = () => {}, renew }) {
    this.url = url;
    this._renew = renew;
    this.state = "";
    this.lastId = "";
    this.connections = 0;
    this.events = 0;
    this.missing = 0;
    this.doubled = 0;
    this._onEvent = onEvent;
    this._onState = onState;
    this._seq = 0;
    this._from = ""; // the id that the link of the open connection names
    this._failures = 0;
    this._source = null;
    this._timer = 0;
    this._connect();
  }

  /** Break the connection off, as a dead network would. The task continues. */
  cut() {
    if (this.state === "ended" || this.state === "refused") return;
    this._close();
    this._tell("cut");
  }

  /** Come back after `cut`, behind the last event that was seen. */
  resume() {
    if (this.state === "cut") this._connect();
  }

  /** Stop reading for good. */
  close() {
    this._close();
    if (this.state !== "ended") this._tell("ended");
  }

  _connect() {
    this._close();
    const url = new URL(this.url, document.baseURI);
    this._from = this.lastId;
    if (this._from) url.searchParams.set("lastEventId", this._from); // a new EventSource cannot send the header at first
    const source = new EventSource(url);
    this._source = source;
    this._tell("connecting");
    source.addEventListener("open", () => {
      if (source !== this._source) return;
      this.connections += 1;
      this._failures = 0;
      this._tell("open");
    });
    for (const name of [...LOGGED, ...UNLOGGED]) {
      source.addEventListener(name, event => {
        if (source !== this._source) return;
        if (typeof event.data === "string") this._take(name, event.lastEventId, event.data);
        else this._lost(source); // `error` without data is the browser's word for a broken connection
      });
    }
  }

  _take(name, id, text) {
    const data = JSON.parse(text);
    if (!LOGGED.has(name)) {
      if (name === "restart") {
        this.lastId = "";
        this._seq = 0;
        this.events = 0;
      }
      this._onEvent({ id: null, event: name, data });
      return;
    }
    const seq = Number(numberOf(id));
    if (seq <= this._seq) {
      this.doubled += 1;
      return;
    }
    this.missing += seq - this._seq - 1;
    this._seq = seq;
    this.lastId = id;
    this.events += 1;
    const ends = TERMINAL.has(name);
    if (ends) this._close();
    this._onEvent({ id, event: name, data });
    if (ends) this._tell("ended");
  }

  _lost(source) {
    this._tell("lost");
    const forgotten = this._from && !this.lastId; // the browser would ask for what was discarded
    if (source.readyState !== EventSource.CLOSED && !forgotten) return; // it comes back by itself
    this._close();
    this._again();
  }

  _again() {
    this._failures += 1;
    if (this._failures > MAX_TRIES) {
      this._tell("refused", new Problem(0, "NETWORK", "The gateway cannot be reached"));
      return;
    }
    this._timer = setTimeout(() => this._ask(), pauseMs(this._failures));
  }

  /** Find out why the browser has given up: an EventSource does not say. */
  async _ask() {
    const asking = this._timer;
    const asked = new AbortController();
    try {
      const response = await send(this.url, { headers: { Accept: "text/event-stream" }, signal: asked.signal });
      asked.abort();
      if (asking !== this._timer) return; // closed or cut meanwhile
      if (response.status === 204) this._tell("ended");
      else this._connect();
    } catch (problem) {
      const renewed = problem.code === "LINK_INVALID" ? await this._renew().catch(() => "") : "";
      if (asking !== this._timer) return;
      if (renewed) {
        this.url = renewed;
        this._connect();
      } else if (problem.status >= 400 && problem.status < 500) this._tell("refused", problem);
      else this._again();
    }
  }

  _close() {
    clearTimeout(this._timer);
    this._timer = 0;
    this._source?.close();
    this._source = null;
  }

  _tell(state, problem = null) {
    this.state = state;
    this._onState(state, problem);
  }
}

/**
 * The events of a fetched stream, one by one: { id, event, data, retry }, as the standard reads them. `data` is text.
 * Throws what the connection throws when it breaks, and Problem when nothing at all comes for `idleMs` (0: wait for ever).
 */
export async function* readEvents(response, { idleMs = 0 } = {}) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let fresh = { id: null, event: "message", data: [], retry: null };
  try {
    for (;;) {
      const { done, value } = await within(reader.read(), idleMs);
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const whole of lines) {
        const line = whole.endsWith("\r") ? whole.slice(0, -1) : whole;
        if (line === "") {
          if (fresh.data.length) yield { ...fresh, data: fresh.data.join("\n") };
          fresh = { id: null, event: "message", data: [], retry: null };
          continue;
        }
        const colon = line.indexOf(":");
        if (colon === 0) continue;
        const name = colon < 0 ? line : line.slice(0, colon);
        const text = colon < 0 ? "" : line.slice(colon + (line[colon + 1] === " " ? 2 : 1));
        if (name === "data") fresh.data.push(text);
        else if (name === "event") fresh.event = text;
        else if (name === "id") fresh.id = text;
        else if (name === "retry" && /^\d+$/.test(text)) fresh.retry = Number(text);
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // already broken
  }
}

async function within(promise, ms) {
  if (!ms) return promise;
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Problem(0, "TIMEOUT_HERE", "The stream fell silent")), ms);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

/**
 * Reads a stream for as long as the page wants it, with the key in the header: comes back after every break and end, behind the
 * last id it saw, until `signal` is aborted, the gateway answers 204, or it refuses (4xx: throws Problem).
 *
 * `onEvent({ id, event, data })`: `data` is text. `onState(state, problem)`: connecting, open, lost.
 */
export async function listen(path, { onEvent, onState = () => {}, signal, idleMs = 45_000 }) {
  let lastId = "";
  let failures = 0;
  let retryMs = 0;
  while (!signal.aborted) {
    let problem = null;
    onState(failures ? "lost" : "connecting", null);
    try {
      const headers = { Accept: "text/event-stream", ...(lastId ? { "Last-Event-ID": lastId } : {}) };
      const response = await send(path, { headers, signal });
      if (response.status === 204) return;
      onState("open", null);
      failures = 0;
      for await (const event of readEvents(response, { idleMs })) {
        if (signal.aborted) return;
        if (event.id !== null) lastId = event.id;
        if (event.retry !== null) retryMs = event.retry;
        onEvent(event);
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error.status >= 400 && error.status < 500) throw error;
      problem = error;
    }
    failures += 1;
    onState("lost", problem);
    await pause(Math.max(pauseMs(failures - 1), retryMs), signal);
  }
}

/** Wait so long, or until `signal` is aborted. */
function pause(ms, signal) {
  return new Promise(resolve => {
    const over = () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", over);
      resolve();
    };
    const timer = setTimeout(over, ms);
    signal.addEventListener("abort", over);
  });
}
