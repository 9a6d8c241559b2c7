// Server-sent events: read by the client for callers' own pages, which is served next to the pages' modules.

import { follow } from "../client/fairlane.js";
import { authorization } from "./api.js";

/** The number of an event in its log, as people read it: an id is opaque but for the count behind its dash; "–" for none. */
export const numberOf = id => id.slice(id.indexOf("-") + 1) || "–";

/**
 * Reads one task's events to its end, over as many connections as it takes.
 *
 * `onEvent({ id, event, data })`: `id` null for events that are not in the log. `restart` means: discard what you have.
 * `onState(state, problem)`: connecting, open, lost (comes back by itself), cut (by `cut`), ended, refused (permanently; why).
 * `renew()`: a promise of another link, for when this one has expired, as after a long sleep. It may fail.
 */
export class Follower {
  constructor(url, { onEvent, onState = () => {}, renew }) {
    this.url = url;
    this.state = "";
    this.lastId = "";
    this.connections = 0;
    this.events = 0;
    this.missing = 0; // ids count without a gap, so a page can show that no event was lost or repeated
    this.doubled = 0;
    this._onEvent = onEvent;
    this._onState = onState;
    this._renew = renew;
    this._read();
  }

  /** Break the connection off, as a dead network would. The task continues. */
  cut() {
    if (this.state === "ended" || this.state === "refused") return;
    this._stop.abort();
    this._enter("cut");
  }

  /** Come back after `cut`, behind the last event that was seen. */
  resume() {
    if (this.state === "cut") this._read();
  }

  /** Stop reading permanently. */
  close() {
    this._stop.abort();
    if (this.state !== "ended") this._enter("ended");
  }

  async _read() {
    const { signal } = (this._stop = new AbortController());
    const onConnection = (state, problem) => {
      if (signal.aborted) return;
      if (state === "open") this.connections += 1;
      this._enter(state, problem);
    };
    const renew = async () => (this.url = await this._renew());
    try {
      for await (const event of follow(this.url, { signal, lastEventId: this.lastId, onConnection, renew })) {
        if (signal.aborted) return;
        if (event.event === "restart") [this.lastId, this.events] = ["", 0];
        else if (event.id !== null && !this._isNext(event.id)) continue;
        this._onEvent(event);
      }
      if (!signal.aborted) this._enter("ended");
    } catch (error) {
      if (!signal.aborted) this._enter("refused", error);
    }
  }

  /** Whether an event of the log was not seen before. */
  _isNext(id) {
    const gap = numberOf(id) - (this.lastId ? numberOf(this.lastId) : 0);
    if (gap <= 0) this.doubled += 1;
    else {
      this.missing += gap - 1;
      this.lastId = id;
      this.events += 1;
    }
    return gap > 0;
  }

  _enter(state, problem = null) {
    this.state = state;
    this._onState(state, problem);
  }
}

/** A stream of events over as many connections as it takes, with the page's key: the client's `follow`. Throws FairlaneError. */
export const events = (path, { headers, ...options }) => follow(path, { ...options, headers: { ...authorization(), ...headers } });
