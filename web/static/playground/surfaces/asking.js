// One question through a surface of POST and a stream, read by fetch: its connection, and what comes over it.

import { Problem, send } from "../../common/api.js";
import { readEvents } from "../../common/sse.js";

const IDLE_MS = 60_000;
const MOST_TRIES = 8;
const LONGEST_PAUSE_MS = 8000;

/**
 * Ask `surface` with `body`, or read again what was asked before: `from` is the path of its stream then.
 *
 * `onEvent(event)` is told what the surface's reader makes of the stream: { event, data } as in a task's log, with an `id` where the
 * surface counts its frames. `onFrame(frame)` is told each frame as it came. `onState(state, problem)`: open, lost (comes back by itself),
 * cut (by `cut`), ended, refused (for good; why).
 *
 * `accepted` is the task's id as soon as there is one (rejects with Problem); `go()` then begins to tell. Who leaves, by `cut` or `close`,
 * cancels the task, unless the surface knows a way `onward`: then `resume` reads on behind the last frame, each of which is told once.
 */
export class Asking {
  constructor(surface, { body, from = null, headers, onEvent, onFrame, onState }) {
    this.surface = surface;
    this.state = "connecting";
    this.connections = 0;
    this.events = 0;
    this.missing = 0;
    this.doubled = 0;
    this._onEvent = onEvent;
    this._onFrame = onFrame;
    this._onState = onState;
    this._headers = { ...headers, ...surface.headers };
    this._reader = new surface.Reader(Date.now());
    this._last = null; // the number of the last frame
    this._response = from === null ? this._post(body) : this._get(from);
    this.accepted = this._response.then(response => response.headers.get("x-task-id"));
  }

  /** The number of the last frame that was seen; "" for none. */
  get lastId() {
    return this._last === null ? "" : String(this._last);
  }

  /** The surface's own id of what was asked; null for none. */
  get id() {
    return this._reader.id ?? null;
  }

  /** Whether the stream can be read on when it breaks. */
  get resumes() {
    return this._onward() !== null;
  }

  close() {
    this._leaving.abort();
    this.state = "ended";
  }

  /** Break the connection off, as a dead network would. */
  cut() {
    this._leaving.abort();
    this._tell("cut");
  }

  /** Come back after `cut`. */
  resume() {
    if (this.state !== "cut" || !this.resumes) return;
    this._response = this._get(this._onward());
    this.go();
  }

  async go() {
    const mine = this._leaving;
    for (let failures = 0; ; failures += 1) {
      const before = this.events;
      try {
        const response = await this._response;
        this.connections += 1;
        this._tell("open");
        await this._read(response);
        this._tell("ended");
        return;
      } catch (error) {
        if (mine.signal.aborted) return;
        const problem = error instanceof Problem ? error : new Problem(0, "NETWORK", String(error));
        if (this.events > before) failures = 0;
        const gone = problem.status >= 400 && problem.status < 500 && problem.status !== 429;
        if (gone || !this.resumes || failures >= MOST_TRIES) {
          this._tell("refused", problem);
          return;
        }
        this._tell("lost", problem);
        await new Promise(resolve => setTimeout(resolve, Math.min(500 * 2 ** failures, LONGEST_PAUSE_MS)));
        if (mine.signal.aborted) return;
        this._response = this._get(this._onward(), mine);
        this._response.catch(() => {}); // `go` looks at it
      }
    }
  }

  _post(body) {
    this._leaving = new AbortController();
    const headers = { ...this._headers, Accept: "text/event-stream" };
    return send(this.surface.path, { body, headers, signal: this._leaving.signal, timeoutMs: 0 });
  }

  _get(path, leaving = new AbortController()) {
    this._leaving = leaving;
    return send(path, { headers: { ...this._headers, Accept: "text/event-stream" }, signal: leaving.signal });
  }

  _onward() {
    return this.surface.onward?.(this._reader) ?? null;
  }

  async _read(response) {
    for await (const frame of readEvents(response, { idleMs: IDLE_MS })) {
      const before = this._last;
      const events = this._reader.feed(frame, Date.now());
      const number = this._reader.number;
      if (number !== null && number > (before ?? -1)) {
        this.missing += number - (before ?? -1) - 1;
        this._last = number;
        this.events += 1;
        events[0] = { id: String(number), ...(events[0] ?? { event: "", data: {} }) };
      }
      this._onFrame(frame);
      for (const event of events) this._onEvent(event);
      if (this._reader.ended) return;
    }
    throw new Problem(0, "NETWORK", "The stream broke off");
  }

  _tell(state, problem = null) {
    this.state = state;
    this._onState(state, problem);
  }
}
