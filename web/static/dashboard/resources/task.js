// One task: where its time went, its attempts, its events as they come.

import { call, explain } from "../../common/api.js";
import { eachFrame, h, replace, setText } from "../../common/dom.js";
import { bytes, clock, duration, number } from "../../common/format.js";
import { t } from "../../common/i18n.js";
import { copyButton } from "../../common/page.js";
import { Follower, numberOf } from "../../common/sse.js";
import { plainTable } from "../../common/table.js";
import { cancel, live } from "../actions.js";
import { panel } from "../view.js";
import { statusChip } from "./cells.js";
import { spans } from "./tasks.js";

const MAX_EVENTS = 300;
const MAX_TEXT = 400;

const read = id => call(`/api/admin/tasks/${encodeURIComponent(id)}`);
const list = parts => parts.filter(Boolean).join(", ");

export const task = {
  name: "tasks",
  load: read,
  draw: row => ({
    groups: [
      { name: "task", title: row.taskId, note: [statusChip(row.status), copyButton(() => row.taskId)], facts: factsOf(row), actions: [cancel] },
      timeline(row),
      ...(row.metadata === null ? [] : [{ name: "task_metadata", content: [h("pre", { class: "code wrap", id: "metadata" }, JSON.stringify(row.metadata, null, 2))] }]),
    ],
    sections: [],
  }),
  follow: (row, refresh) => (row.streamUrl ? new Events(row, refresh) : null),
};

function factsOf(row) {
  const failed = row.status === "failed";
  const deadlines = live(row) ? [row.deadlineAt, row.status === "queued" ? row.waitDeadlineAt : row.attemptDeadlineAt].filter(Boolean) : [];
  return [
    ["col.user", row.user],
    ["col.key", row.key],
    ["task.request", row.requestId],
    ["task.chain", row.chain ? h("a", { class: "id", href: `#/tasks/${row.chain}` }, row.chain) : row.chainName],
    ["task.stage", list([row.stage, row.stage !== null && row.part !== null && `#${row.part}`, row.stage !== null && live(row) && t("task.stage.since", { time: duration(row.now - row.stageAt) })])],
    ["task.stages", (row.stages ?? []).map(({ name, status, model }) => `${name}: ${t(`status.${status}`)}${model ? ` (${model})` : ""}`).join(" → ")],
    ["task.permit", row.permit && t(row.permit.usedAt ? "task.permit.used" : "task.permit.out", { time: clock(row.permit.until) })],
    ["col.queue", row.queue],
    ["col.model", row.model],
    ["task.requestedModel", row.requestedModel !== row.model && row.requestedModel],
    ["task.moves", list((row.moves ?? []).map(({ model, at, reason }) => `${model} (${clock(at)}, ${reason})`))],
    ["task.repaired", row.repaired && t("task.repaired.yes")],
    ["task.type", row.type],
    ["task.priority", row.priority || null],
    ["col.error", failed && row.code],
    ["task.category", failed && row.category],
    ["task.place", row.position && number(row.position)],
    ["task.estimate", (row.estimatedWaitMs ?? null) !== null && t("task.estimate.range", { wait: duration(row.estimatedWaitMs), low: duration(row.estimatedWaitLowMs), high: duration(row.estimatedWaitHighMs) })],
    ["task.bytes", row.payloadBytes !== null && bytes(row.payloadBytes)],
    ["task.tokens", row.estimatedInputTokens !== null && list([t("task.tokens.in", { n: number(row.estimatedInputTokens) }), row.maxOutputTokens !== null && t("task.tokens.out", { n: number(row.maxOutputTokens) })])],
    ["task.tries", row.tries > 1 && number(row.tries)],
    ["task.deadline", deadlines.length > 0 && clock(Math.min(...deadlines))],
  ];
}

/** The steps of a task as a line, and its attempts. */
function timeline(row) {
  const steps = [
    { key: "queued", at: row.enqueuedAt, tone: "wait" },
    { key: "granted", at: row.startedAt, tone: "first" },
    { key: "first", at: row.firstOutputAt, tone: "run" },
    { key: "end", at: row.endedAt, tone: `end ${row.status}` },
  ].filter(({ at }) => at !== null);
  const parts = steps
    .filter(({ key }) => key !== "end")
    .map(({ at, tone }, index) => {
      const part = h("i", { class: `tone-${tone}${index === steps.length - 1 ? " moving" : ""}` });
      part.style.flexGrow = String(Math.max((steps[index + 1]?.at ?? row.now) - at, 0));
      return part;
    });
  const items = steps.map(({ key, at, tone }, index) =>
    h(
      "li",
      { class: `tone-${tone}`, dataset: { step: key } },
      h("b", {}, key === "end" ? t(`status.${row.status}`) : t(`step.${key}`)),
      h("span", {}, clock(at)),
      index ? h("span", { class: "sub" }, t("step.after", { time: duration(at - steps[index - 1].at) })) : null,
    ),
  );
  const { waited, ran } = spans(row);
  return {
    name: "timeline",
    note: h("span", { class: "muted small" }, `${t("col.waited")} ${duration(waited)}${ran === null ? "" : ` · ${t("col.ran")} ${duration(ran)}`}`),
    content: [h("div", { class: "line", "aria-hidden": "true" }, parts), h("ol", { class: "steps" }, items), row.attempts.length ? attempts(row) : null],
  };
}

function attempts(row) {
  const since = (at, attempt) => (at ? duration(at - attempt.grantedAt) : "–");
  const rows = row.attempts.map((attempt, index) => {
    const outcome = attempt.outcome === null ? t("col.running") : t(`status.${attempt.outcome}`).replace(/^status\./, "");
    const cells = [index + 1, h("span", { class: "id" }, attempt.workerId || "–"), attempt.model ?? "–", clock(attempt.grantedAt), since(attempt.firstOutputAt, attempt), since(attempt.endedAt, attempt), outcome];
    return h("tr", {}, cells.map(cell => h("td", {}, cell)));
  });
  const heads = ["task.attempt", "col.worker", "col.model", "step.granted", "step.first", "col.ran", "task.outcome"];
  return h("div", { class: "table-wrap", tabindex: 0, role: "region", "aria-label": t("task.tries") }, plainTable(heads, rows, { id: "attempts" }));
}

/** The events of a task, as long as they come. `refresh()` is called when its status may have changed. */
class Events {
  constructor({ taskId, streamUrl, enqueuedAt }, refresh) {
    this._refresh = refresh;
    this._enqueuedAt = enqueuedAt;
    this._events = [];
    this._logged = 0;
    this._dropped = 0;
    this._state = [];
    this._draw = eachFrame(() => this._drawNow());
    this._hint = h("span", { class: "muted small" });
    this._note = h("p", { class: "muted small", hidden: true });
    const table = plainTable(["event.id", "event.after", "event.type", "event.text"], []);
    this._rows = table.lastChild;
    this.element = panel("events", t("events.title"), { note: this._hint }, this._note, h("div", { class: "events", tabindex: 0, role: "region", "aria-labelledby": "events-title" }, table));
    this._follower = new Follower(streamUrl, {
      onEvent: event => this._take(event),
      onState: (...state) => {
        this._state = state;
        this._draw();
      },
      renew: async () => (await read(taskId)).streamUrl,
    });
    this._rest();
    this._onSeen = () => this._rest();
    document.addEventListener("visibilitychange", this._onSeen);
  }

  close() {
    document.removeEventListener("visibilitychange", this._onSeen);
    this._follower.close();
  }

  /** A hidden page holds no connection: a browser has few of them for one gateway. */
  _rest() {
    if (document.hidden) this._follower.cut();
    else this._follower.resume();
  }

  _take({ id, event, data }) {
    if (event === "restart") {
      this._events = [];
      this._logged = this._dropped = 0;
    }
    if (id !== null) this._logged += 1;
    const cells = [h("td", { class: "id", title: id }, numberOf(id ?? "")), h("td", { class: "num" }, duration(data.ts - this._enqueuedAt)), h("td", {}, event), h("td", { class: "text" }, describe(event, data))];
    this._events.push({ id, row: h("tr", {}, cells) });
    if (this._events.length > MAX_EVENTS && this._events.shift().id) this._dropped += 1;
    this._draw();
    if (["start", "done", "error", "cancelled"].includes(event)) this._refresh();
  }

  _drawNow() {
    const [state, problem] = this._state;
    const words = { open: "events.live", connecting: "live.connecting", lost: "events.lost", ended: "events.ended", refused: "events.rejected" }[state];
    setText(this._hint, `${t("events.count", { n: this._logged })} · ${words ? t(words, { reason: explain(problem) }) : ""}`);
    this._note.hidden = this._dropped === 0;
    setText(this._note, t("events.hidden", { n: this._dropped }));
    replace(this._rows, this._events.map(({ row }) => row));
  }
}

/** The content of an event, in a line or two of text. */
function describe(event, data) {
  const { taskId: _id, ts: _ts, ...rest } = data;
  const textOf = value => (typeof value === "string" ? value : JSON.stringify(value));
  let text = textOf(rest);
  if (event === "chunk") text = data.kind === "text" ? data.delta : `${data.kind}: ${textOf(data.delta)}`;
  if (event === "error") text = `${data.code}: ${data.error}`;
  return text.length > MAX_TEXT ? `${text.slice(0, MAX_TEXT)}… (${number(text.length)})` : text;
}
