// Three readings of one task, side by side: the answer as one JSON, the stream of events, the poll.

import { textOf } from "../client/fairlane.js";
import { call, explain } from "../common/api.js";
import { eachFrame, h, replace, setText } from "../common/dom.js";
import { duration, number } from "../common/format.js";
import { t } from "../common/i18n.js";

const SOON_MS = 1000;
const MAX_FRAMES = 400;
const MAX_CHARACTERS = 4000; // of one frame

const ended = answer => ["completed", "failed", "cancelled"].includes(answer?.status);

/**
 * Polls `task` by itself, in the rhythm that the gateway asks for, and gets the events of the stream by `take`. When both are at their
 * end it says whether all three hold the same text.
 */
export class Readings {
  constructor(element, task, fold) {
    this._task = task;
    this._fold = fold;
    this._frames = [];
    this._dropped = 0;
    this._chunks = "";
    this._answer = null; // of the last poll
    this._polls = 0;
    this._next = 0;
    this._problem = null;
    this._closed = new AbortController();
    this._draw = eachFrame(() => this._drawNow());
    this.moveTo(element);
    this._timer = setInterval(this._draw, 250);
    this._poll();
  }

  close() {
    this._closed.abort();
    clearInterval(this._timer);
    clearTimeout(this._again);
  }

  /** Draw into this element from now on. */
  moveTo(element) {
    const column = name => {
      this._boxes[name] = h("pre", { class: "code wrap", id: `reading-${name}-text`, tabindex: 0, "aria-labelledby": `reading-${name}` });
      return h("section", { "aria-labelledby": `reading-${name}` }, h("h3", { id: `reading-${name}` }, t(`readings.${name}`)), h("p", { class: "hint" }, t(`readings.${name}.hint`)), this._boxes[name]);
    };
    this._boxes = {};
    this._pollNote = h("p", { class: "small muted num", id: "poll-note" });
    this._agreed = h("p", { class: "notice", id: "agreed", hidden: true });
    element.hidden = false;
    replace(element, h("div", { class: "readings" }, ["json", "events", "poll"].map(column)), this._pollNote, this._agreed);
    this._draw();
  }

  /** An event of the stream. */
  take({ id, event, data }) {
    if (event === "chunk" && data.kind === "text" && data.index === 0) this._chunks += data.delta;
    if (event === "start" || event === "restart") this._chunks = "";
    const text = JSON.stringify(data);
    const shown = text.length > MAX_CHARACTERS ? `${text.slice(0, MAX_CHARACTERS)} …` : text;
    this._frames.push(`${id ? `id: ${id}\n` : ""}event: ${event}\ndata: ${shown}`);
    if (this._frames.length > MAX_FRAMES) this._dropped += this._frames.splice(0, 1).length;
    if (this._fold.ended && !ended(this._answer)) this._poll();
    this._draw();
  }

  async _poll() {
    clearTimeout(this._again);
    this._next = 0;
    let pauseMs = SOON_MS;
    try {
      this._answer = await call(`/api/task/${this._task.taskId}`, { headers: this._task.headers.wire, signal: this._closed.signal });
      this._problem = null;
      this._polls += 1;
      pauseMs = this._answer.pollAfterMs ?? SOON_MS;
    } catch (problem) {
      this._problem = problem;
      pauseMs = problem.retryAfterMs ?? 3000;
    }
    if (this._closed.signal.aborted || ended(this._answer) || this._problem?.status === 404) return;
    clearTimeout(this._again); // of a poll at the same time
    this._next = Date.now() + pauseMs;
    this._again = setTimeout(() => this._poll(), pauseMs);
  }

  _drawNow() {
    const { status, result } = this._fold.task;
    const { json, events, poll } = this._boxes;
    setText(json, status === "completed" ? JSON.stringify(result, null, 2) : t("readings.json.none"));
    const atEnd = events.scrollTop + events.clientHeight >= events.scrollHeight - 40;
    setText(events, [...(this._dropped ? [t("readings.dropped", { n: number(this._dropped) })] : []), ...this._frames].join("\n\n"));
    if (atEnd) events.scrollTop = events.scrollHeight;
    setText(poll, this._problem ? explain(this._problem) : this._answer ? JSON.stringify(this._answer, null, 2) : "");
    const next = this._next ? ` ${t("readings.next", { wait: duration(Math.max(this._next - Date.now(), 0)) })}` : "";
    setText(this._pollNote, t("readings.polls", { n: this._polls }) + next);
    this._drawAgreed(status, result);
  }

  _drawAgreed(status, result) {
    const both = this._fold.ended && ended(this._answer);
    this._agreed.hidden = !both;
    if (!both) return;
    const texts = [textOf(result), textOf(this._answer.result), this._chunks].filter(text => typeof text === "string");
    const same = status === this._answer.status && (status !== "completed" || new Set(texts).size === 1);
    this._agreed.className = `notice ${same ? "good" : "bad"}`;
    setText(this._agreed, same ? t(status === "completed" ? "readings.same" : "readings.sameState", { n: number((texts[0] ?? "").length) }) : t("readings.differ"));
  }
}
