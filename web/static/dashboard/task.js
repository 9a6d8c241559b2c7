// One task: where its time went, its attempts, its events as they come.

import { call, explain } from "../common/api.js";
import { eachFrame, h, later, replace, setText } from "../common/dom.js";
import { bytes, clock, duration, number } from "../common/format.js";
import { onLanguage, t } from "../common/i18n.js";
import { copyButton } from "../common/page.js";
import { Follower, numberOf } from "../common/sse.js";
import { cancel } from "./actions.js";
import { live, spans, statusChip } from "./tasks.js";

const AGAIN_MS = 2000;
const MAX_EVENTS = 300;
const MAX_TEXT = 400;

export class Task {
  constructor(taskId) {
    this._id = taskId;
    this._task = null;
    this._follower = null;
    this._events = [];
    this._logged = 0;
    this._dropped = 0;
    this._eventState = "";
    this._problemOfEvents = null;
    this._calledOff = () => {};
    this._stopped = false;
    this._problem = h("div", { role: "alert" });
    this._head = h("div");
    this._eventList = h("tbody");
    this._eventHint = h("span", { class: "muted small" });
    this._eventNote = h("p", { class: "muted small", hidden: true });
    this._drawEvents = eachFrame(() => this._drawEventsNow());
    this._eventHead = h("thead");
    this._eventTable = h("table", {}, this._eventHead, this._eventList);
    this._eventTitle = h("h2", { id: "events-title" });
    this._back = h("a", { href: "#/tasks" });
    this._panel = h(
      "section",
      { class: "panel", id: "events", "aria-labelledby": "events-title", hidden: true },
      h("div", { class: "panel-head" }, this._eventTitle, this._eventHint),
      this._eventNote,
      h("div", { class: "events", tabindex: 0, role: "region", "aria-labelledby": "events-title" }, this._eventTable),
    );
    this.element = h("div", { class: "grid" }, h("p", { class: "small" }, this._back), this._problem, this._head, this._panel);
    this._forget = onLanguage(() => this._translate());
    this._onSeen = () => this._rest();
    document.addEventListener("visibilitychange", this._onSeen);
    this._translate();
    this._read();
  }

  close() {
    this._stopped = true;
    this._calledOff();
    document.removeEventListener("visibilitychange", this._onSeen);
    this._follower?.close();
    this._forget();
  }

  show() {}

  _translate() {
    setText(this._back, `← ${t("task.back")}`);
    setText(this._eventTitle, t("events.title"));
    replace(this._eventHead, h("tr", {}, ["event.id", "event.after", "event.type", "event.text"].map(key => h("th", { scope: "col" }, t(key)))));
    if (this._task) this._draw();
    this._drawEventsNow();
  }

  /** A hidden page holds no connection: a browser has few of them for one gateway. */
  _rest() {
    if (document.hidden) this._follower?.cut();
    else this._follower?.resume();
  }

  _ask() {
    return call(`/api/admin/tasks/${encodeURIComponent(this._id)}`);
  }

  async _read() {
    this._calledOff();
    try {
      this._task = await this._ask();
      if (this._stopped) return;
      replace(this._problem);
      this._draw();
      this._follow();
    } catch (problem) {
      if (this._stopped) return;
      replace(this._problem, h("p", { class: "notice bad" }, explain(problem)));
      if (problem.status === 404) return;
    }
    if (this._task === null || live(this._task)) this._calledOff = later(() => this._read(), AGAIN_MS);
  }

  _follow() {
    if (this._follower !== null || !this._task.streamUrl) return;
    this._panel.hidden = false;
    this._follower = new Follower(this._task.streamUrl, {
      onEvent: event => this._take(event),
      onState: (state, problem) => {
        this._eventState = state;
        this._problemOfEvents = problem;
        this._drawEvents();
      },
      renew: async () => (await this._ask()).streamUrl,
    });
    this._rest();
  }

  _take({ id, event, data }) {
    if (event === "restart") {
      this._events = [];
      this._logged = this._dropped = 0;
    }
    if (id !== null) this._logged += 1;
    this._events.push({ id: id ?? "", event, at: data.ts, text: describe(event, data) });
    if (this._events.length > MAX_EVENTS && this._events.shift().id) this._dropped += 1;
    this._drawEvents();
    if (["start", "done", "error", "cancelled"].includes(event)) this._read();
  }

  _drawEventsNow() {
    const hint = {
      open: "events.live",
      connecting: "live.connecting",
      lost: "events.lost",
      ended: "events.ended",
    }[this._eventState];
    const words = this._eventState === "refused" ? t("events.rejected", { reason: explain(this._problemOfEvents) }) : hint ? t(hint) : "";
    setText(this._eventHint, `${t("events.count", { n: this._logged })} · ${words}`);
    this._eventNote.hidden = this._dropped === 0;
    setText(this._eventNote, t("events.hidden", { n: this._dropped }));
    const base = this._task?.enqueuedAt ?? 0;
    replace(
      this._eventList,
      this._events.map(({ id, event, at, text }) =>
        h("tr", {}, h("td", { class: "id", title: id }, numberOf(id)), h("td", { class: "num" }, duration(at - base)), h("td", {}, event), h("td", { class: "text" }, text)),
      ),
    );
  }

  // ---- what is known of the task ----------

  _draw() {
    const task = this._task;
    const held = this._head.contains(document.activeElement) ? document.activeElement.dataset.action : undefined;
    replace(
      this._head,
      h(
        "div",
        { class: "grid" },
        h(
          "section",
          { class: "panel", id: "task", "aria-labelledby": "task-title" },
          h(
            "div",
            { class: "task-head" },
            h("h2", { id: "task-title" }, task.taskId),
            statusChip(task.status),
            h(
              "div",
              { class: "end" },
              copyButton(() => task.taskId),
              live(task)
                ? h("button", { type: "button", class: "small danger", dataset: { action: "cancel" }, on: { click: () => cancel(task, () => this._read()) } }, t("action.cancel.task"))
                : null,
            ),
          ),
          this._facts(task),
        ),
        this._timeline(task),
        task.metadata === null
          ? null
          : h("section", { class: "panel" }, h("h2", {}, t("task.metadata")), h("pre", { class: "code wrap", id: "metadata" }, JSON.stringify(task.metadata, null, 2))),
      ),
    );
    if (held !== undefined) this._head.querySelector(`[data-action="${held}"]`)?.focus();
  }

  _facts(task) {
    const facts = [
      ["task.user", task.user],
      ["task.key", task.key],
      ["task.request", task.requestId],
      ["task.chain", task.chain ? h("a", { class: "id", href: `#/tasks/${task.chain}` }, task.chain) : task.chainName],
      ["task.stage", task.stage === null ? null : [task.stage, task.part === null ? null : `#${task.part}`, live(task) ? t("task.stage.since", { time: duration(task.now - task.stageAt) }) : null].filter(Boolean).join(" ")],
      ["task.stages", (task.stages ?? []).map(({ name, status, model }) => `${name}: ${t(`status.${status}`)}${model ? ` (${model})` : ""}`).join(" → ")],
      ["task.permit", task.permit ? t(task.permit.usedAt ? "task.permit.used" : "task.permit.out", { time: clock(task.permit.until) }) : null],
      ["task.queue", task.queue],
      ["task.model", task.model],
      ["task.requestedModel", task.requestedModel === task.model ? null : task.requestedModel],
      ["task.moves", (task.moves ?? []).map(({ model, at, reason }) => `${model} (${clock(at)}, ${reason})`).join(", ")],
      ["task.repaired", task.repaired ? t("task.repaired.yes") : null],
      ["task.type", task.type],
      ["task.priority", task.priority || null],
      ["task.why", task.status === "failed" ? task.code : null],
      ["task.category", task.status === "failed" ? task.category : null],
      ["task.place", task.position === undefined ? null : number(task.position)],
      [
        "task.estimate",
        (task.estimatedWaitMs ?? null) === null
          ? null
          : t("task.estimate.range", { wait: duration(task.estimatedWaitMs), low: duration(task.estimatedWaitLowMs), high: duration(task.estimatedWaitHighMs) }),
      ],
      ["task.bytes", task.payloadBytes === null ? null : bytes(task.payloadBytes)],
      [
        "task.tokens",
        task.estimatedInputTokens === null
          ? null
          : [t("task.tokens.in", { n: number(task.estimatedInputTokens) }), task.maxOutputTokens === null ? null : t("task.tokens.out", { n: number(task.maxOutputTokens) })].filter(Boolean).join(", "),
      ],
      ["task.tries", task.tries > 1 ? number(task.tries) : null],
      ["task.deadline", live(task) ? latest(task) : null],
    ];
    return h(
      "dl",
      { class: "facts" },
      facts.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([key, value]) => h("div", {}, h("dt", {}, t(key)), h("dd", {}, value))),
    );
  }

  _timeline(task) {
    const steps = [{ key: "queued", at: task.enqueuedAt, tone: "wait" }];
    if (task.startedAt !== null) steps.push({ key: "granted", at: task.startedAt, tone: "first" });
    if (task.firstOutputAt !== null) steps.push({ key: "first", at: task.firstOutputAt, tone: "run" });
    const end = task.endedAt ?? task.now;
    const parts = steps.map((step, index) => {
      const until = steps[index + 1]?.at ?? end;
      const part = h("i", { class: `tone-${step.tone}${task.endedAt === null && index === steps.length - 1 ? " moving" : ""}` });
      part.style.flexGrow = String(Math.max(until - step.at, 0));
      return part;
    });
    if (task.endedAt !== null) steps.push({ key: "end", at: task.endedAt, tone: `end ${task.status}` });
    const { waited, ran } = spans(task);
    const list = steps.map(({ key, at, tone }, index) =>
      h(
        "li",
        { class: `tone-${tone}`, dataset: { step: key } },
        h("b", {}, key === "end" ? t(`status.${task.status}`) : t(`step.${key}`)),
        h("span", {}, clock(at)),
        index ? h("span", { class: "sub" }, t("step.after", { time: duration(at - steps[index - 1].at) })) : null,
      ),
    );
    return h(
      "section",
      { class: "panel", id: "timeline", "aria-labelledby": "timeline-title" },
      h(
        "div",
        { class: "panel-head" },
        h("h2", { id: "timeline-title" }, t("task.timeline")),
        h("span", { class: "muted small" }, `${t("task.waited")} ${duration(waited)}${ran === null ? "" : ` · ${t("task.ran")} ${duration(ran)}`}`),
      ),
      h("div", { class: "line", "aria-hidden": "true" }, parts),
      h("ol", { class: "steps" }, list),
      task.attempts.length ? attempts(task) : null,
    );
  }
}

function latest(task) {
  const dates = [task.deadlineAt, task.status === "queued" ? task.waitDeadlineAt : task.attemptDeadlineAt].filter(Boolean);
  return dates.length ? clock(Math.min(...dates)) : null;
}

function attempts(task) {
  const rows = task.attempts.map((attempt, index) =>
    h(
      "tr",
      {},
      h("td", { class: "num" }, String(index + 1)),
      h("td", { class: "id" }, attempt.workerId || "–"),
      h("td", { class: "who" }, attempt.model ?? "–"),
      h("td", { class: "num" }, clock(attempt.grantedAt)),
      h("td", { class: "num" }, attempt.firstOutputAt ? duration(attempt.firstOutputAt - attempt.grantedAt) : "–"),
      h("td", { class: "num" }, attempt.endedAt ? duration(attempt.endedAt - attempt.grantedAt) : "–"),
      h("td", {}, attempt.outcome === null ? t("task.running") : t(`status.${attempt.outcome}`).replace(/^status\./, "")),
    ),
  );
  const names = ["task.attempt", "task.worker", "task.model", "task.granted", "task.first", "task.ran", "task.outcome"];
  return h(
    "div",
    { class: "table-wrap", tabindex: 0, role: "region", "aria-label": t("task.attempts") },
    h("table", { id: "attempts" }, h("thead", {}, h("tr", {}, names.map(name => h("th", { scope: "col" }, t(name))))), h("tbody", {}, rows)),
  );
}

/** What an event says, in a line or two of text. */
function describe(event, data) {
  const { taskId: _id, ts: _ts, ...rest } = data;
  if (event === "chunk") return cut(data.kind === "content" ? data.delta : `${data.kind}: ${textOf(data.delta)}`);
  if (event === "error") return cut(`${data.code}: ${data.error}`);
  return cut(textOf(rest));
}

const textOf = value => (typeof value === "string" ? value : JSON.stringify(value));

function cut(text) {
  const whole = String(text ?? "");
  return whole.length > MAX_TEXT ? `${whole.slice(0, MAX_TEXT)}… (${number(whole.length)})` : whole;
}
