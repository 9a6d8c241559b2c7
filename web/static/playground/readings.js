// Three readings of one task, side by side: the answer as one JSON, the stream of events, the poll.

import { call, explain } from "../common/api.js";
import { h, replace, setText } from "../common/dom.js";
import { duration, number } from "../common/format.js";
import { t } from "../common/i18n.js";
import { textOf } from "../client/fairlane.js";
import { Frames } from "./frames.js";

const SOON_MS = 1000;

/**
 * Polls `task` by itself, in the rhythm that the gateway asks for, and gets the events of the stream by `take`. When both are at their
 * end it says whether all three hold the same text.
 */
export class Readings {
  constructor(element, task, fold) {
    this._task = task;
    this._fold = fold;
    this._frames = new Frames();
    this._chunks = "";
    this._answer = null; // of the last poll
    this._polls = 0;
    this._next = 0;
    this._problem = null;
    this._closed = new AbortController();
    this._streamed = false;
    this.moveTo(element);
    this._timer = setInterval(() => this._drawNext(), 250);
    this._poll();
  }

  close() {
    this._closed.abort();
    clearInterval(this._timer);
    clearTimeout(this._again);
  }

  /** Draw into this element from now on. */
  moveTo(element) {
    const column = (name, ...more) =>
      h(
        "section",
        { "aria-labelledby": `reading-${name}` },
        h("h3", { id: `reading-${name}` }, t(`readings.${name}`)),
        h("p", { class: "hint" }, t(`readings.${name}.hint`)),
        more,
      );
    const pre = name => h("pre", { class: "code wrap", id: `reading-${name}-text`, tabindex: 0, "aria-labelledby": `reading-${name}` });
    this._boxes = { json: pre("json"), events: pre("events"), poll: pre("poll") };
    this._pollNote = h("p", { class: "small muted num", id: "poll-note" });
    this._agreed = h("p", { class: "notice", id: "agreed", hidden: true });
    this._frames.moveTo(this._boxes.events);
    element.hidden = false;
    replace(
      element,
      h(
        "div",
        { class: "readings" },
        column("json", this._boxes.json),
        column("events", this._boxes.events),
        column("poll", this._boxes.poll, this._pollNote),
      ),
      this._agreed,
    );
    this._drawAll();
  }

  /** An event of the stream. */
  take({ id, event, data }) {
    if (event === "chunk" && data.kind === "text" && data.index === 0) this._chunks += data.delta;
    if (event === "start" || event === "restart") this._chunks = "";
    this._frames.add({ id, event, data: JSON.stringify(data) });
  }

  /** The stream is at its end. */
  end() {
    if (this._streamed) return;
    this._streamed = true;
    this._drawAll();
    this._drawAgreed();
    if (this._answer && !ended(this._answer)) this._poll();
  }

  async _poll() {
    clearTimeout(this._again);
    let pauseMs = SOON_MS;
    try {
      const options = { headers: this._task.headers.wire, signal: this._closed.signal };
      this._answer = await call(`/api/task/${this._task.taskId}`, options);
      this._problem = null;
      this._polls += 1;
      pauseMs = this._answer.pollAfterMs ?? SOON_MS;
    } catch (problem) {
      if (this._closed.signal.aborted) return;
      this._problem = problem;
      pauseMs = problem.retryAfterMs ?? 3000;
      if (problem.status === 404) pauseMs = 0;
    }
    if (this._closed.signal.aborted) return;
    if (ended(this._answer) || pauseMs === 0) this._next = 0;
    else {
      this._next = Date.now() + pauseMs;
      this._again = setTimeout(() => this._poll(), pauseMs);
    }
    this._drawPoll();
    this._drawAgreed();
  }

  _drawAll() {
    const { state, result } = this._fold;
    const json = state === "completed" ? JSON.stringify(result, null, 2) : t("readings.json.none");
    setText(this._boxes.json, json);
    this._drawPoll();
    this._drawAgreed();
  }

  _drawPoll() {
    if (this._problem) setText(this._boxes.poll, explain(this._problem));
    else setText(this._boxes.poll, this._answer ? JSON.stringify(this._answer, null, 2) : "");
    this._drawNext();
  }

  _drawNext() {
    const polls = t("readings.polls", { n: this._polls });
    const next = this._next ? ` ${t("readings.next", { wait: duration(Math.max(this._next - Date.now(), 0)) })}` : "";
    setText(this._pollNote, polls + next);
  }

  _drawAgreed() {
    const both = this._streamed && ended(this._answer);
    this._agreed.hidden = !both;
    if (!both) return;
    const stream = this._fold.state;
    const texts = [textOf(this._fold.result), textOf(this._answer.result), this._chunks].filter(text => typeof text === "string");
    const same = stream === this._answer.status && (stream !== "completed" || new Set(texts).size === 1);
    this._agreed.className = `notice ${same ? "good" : "bad"}`;
    const length = number((texts[0] ?? "").length);
    setText(this._agreed, same ? t(stream === "completed" ? "readings.same" : "readings.sameState", { n: length }) : t("readings.differ"));
  }
}

const ended = answer => ["completed", "failed", "cancelled"].includes(answer?.status);
