// One task as the reader sees it: its place in the queue, its connection, its output, its figures.

import { call, explain, explainCode } from "../common/api.js";
import { byId, eachFrame, h, radios, replace, setText } from "../common/dom.js";
import { duration, number, wholeUnits } from "../common/format.js";
import { has, t } from "../common/i18n.js";
import { TextView } from "../common/markdown.js";
import { copyButton, toast } from "../common/page.js";
import { Follower, numberOf } from "../common/sse.js";
import { ApiRequest } from "./apis.js";
import { TaskFold, tokensOf } from "./fold.js";
import { Readings } from "./readings.js";

const BACK_AFTER_S = 4;
const SILENT_MS = 8000;

/**
 * Shows at most one task. It owns the connection to it: showing another, or `close`, ends that.
 *
 * `onStory(story)` gets what has been done so far, for the code panel; `said(text)` gets news for screen readers.
 */
export class TaskPanel {
  constructor(element, { onStory, said }) {
    this._element = element;
    this._onStory = onStory;
    this._said = said;
    this._mode = "markdown";
    this._draw = eachFrame(() => this._drawNow());
    this._clear();
    setInterval(() => this._tick(), 250);
    this.draw();
  }

  _clear() {
    this._fold = null;
    this._source = null; // Follower or ApiRequest
    this._readings = null;
    this._task = null;
    this._back = 0; // when to reconnect after a cut, ms
    this._problem = null;
    this._chains = []; // { from, to, events } per connection
    this._saidState = "";
  }

  close() {
    this._source?.close();
    this._readings?.close();
    this._clear();
  }

  get taskId() {
    return this._task?.taskId ?? null;
  }

  // ---- two ways to get a task ----------

  /** Follow a task: `accepted` is the gateway's 202, or the { taskId, streamUrl } of a link. `readings`: show them side by side. */
  follow(accepted, { headers, steps, readings = false }) {
    this.close();
    const { taskId, streamUrl, stages, position } = accepted;
    this._task = { taskId, headers, steps };
    this._fold = new TaskFold(taskId, stages);
    if (position) this._fold.feed({ event: "queued", data: accepted });
    this._build();
    if (readings) this._readings = new Readings(byId("readings"), this._task, this._fold);
    this._source = new Follower(streamUrl, {
      onEvent: event => this._take(event),
      onState: (state, problem) => this._onConnection(state, problem),
      renew: async () => (await call(`/api/task/${taskId}`, { headers: headers.wire })).streamUrl,
    });
    this._draw();
    this._tell();
  }

  /** Ask through another API than Fairlane's. Throws FairlaneError when the gateway rejects the request. */
  async ask(api, body, { headers, own, steps }) {
    this.close();
    this._task = { taskId: null, headers, steps, api };
    const sentAt = Date.now();
    const mine = work => (...arguments_) => this._source === source && work(...arguments_);
    const source = new ApiRequest(api, {
      onAccepted: mine(taskId => {
        this._task.taskId = taskId;
        this._fold = new TaskFold(taskId);
        this._fold.enqueuedAt = sentAt; // all times of this stream are the browser's
        this._build();
        this._tell();
      }),
      onEvent: mine(event => this._take(event)),
      onState: mine((state, problem) => this._onConnection(state, problem)),
    });
    this._source = source;
    await source.send(body, { ...headers.wire, ...own });
  }

  // ---- what happens ----------

  _take(event) {
    this._heardAt = Date.now();
    this._fold.feed(event);
    if (event.id) this._count(event.id);
    if (event.event === "restart") this._chains = [];
    this._readings?.take(event);
    if (this._fold.ended) this._back = 0;
    this._draw();
  }

  _count(id) {
    id = numberOf(id);
    const last = this._chains.at(-1);
    if (!last || last.connection !== this._source.connections) {
      this._chains.push({ connection: this._source.connections, from: id, to: id, events: 1 });
    } else {
      last.to = id;
      last.events += 1;
    }
  }

  /** How long nothing has come of a task that runs, over an open connection, ms; 0 while that is nothing to speak of. */
  _silentMs() {
    if (this._fold.task.status !== "executing" || this._source.state !== "open") return 0;
    const silent = Date.now() - this._heardAt;
    return silent > SILENT_MS ? silent : 0;
  }

  _onConnection(state, problem) {
    if (state === "open") this._heardAt = Date.now();
    this._problem = problem;
    if (state === "open" && this._chains.length) {
      this._said(t("connection.back", { id: numberOf(this._source.lastId) }));
    }
    this._draw();
  }

  // ---- what the reader does ----------

  _cut() {
    this._source.cut();
    this._back = Date.now() + BACK_AFTER_S * 1000;
    this._said(t("connection.cut", { id: numberOf(this._source.lastId) }));
    this._draw();
  }

  _resume() {
    this._back = 0;
    const after = this._source.lastId;
    if (after) this._step({ do: "resume", after });
    this._source.resume();
    this._draw();
  }

  async _cancel() {
    const { taskId, headers } = this._task;
    try {
      await call(`/api/task/${taskId}/cancel`, { method: "POST", headers: headers.wire });
      if (this._task?.taskId === taskId) this._step({ do: "cancel" });
    } catch (problem) {
      toast(problem.status === 401 || problem.status === 404 ? t("task.cancel.notYours") : explain(problem), "bad");
    }
  }

  _step(step) {
    if (this._task.steps.at(-1)?.do === step.do && step.do === "cancel") return;
    this._task.steps.push(step);
    this._tell();
  }

  _tell() {
    this._onStory({ headers: this._task.headers.named, taskId: this._task.taskId, steps: this._task.steps });
  }

  // ---- drawing ----------

  /** Draw everything again, for example in another language. */
  draw() {
    if (this._fold === null) {
      replace(
        this._element,
        h("h2", { id: "task-title", class: "visually-hidden" }, t("task.id")),
        h("div", { class: "empty" }, h("p", { class: "empty-title" }, t("task.empty")), h("p", {}, t("task.empty.more"))),
      );
      return;
    }
    const readings = this._readings;
    this._build();
    if (readings) readings.moveTo(byId("readings"));
    this._draw();
  }

  _build() {
    const button = (id, label, call, kind = "") =>
      h("button", { type: "button", id, class: kind, on: { click: call } }, label);
    const texts = ["markdown", "plain"].map(mode => [mode, h("span", {}, t(`output.${mode}`))]);
    const modes = radios("output-mode", texts, this._mode, mode => {
      this._mode = mode;
      this._view.setMode(mode);
    });
    const output = h("div", { id: "output", class: "output" });
    replace(
      this._element,
      h(
        "div",
        { class: "panel-head" },
        h("h2", { id: "task-title" }, t("task.id")),
        h("span", { id: "task-state", class: "chip" }),
        h(
          "div",
          { class: "end" },
          this._task.api ? null : [copyButton(() => location.href, null, { text: t("task.link"), copied: t("task.link.copied") }), button("cut", t("task.cut"), () => this._cut())],
          button("cancel-task", t("task.cancel"), () => this._cancel(), "danger"),
        ),
      ),
      h("p", { class: "task-id muted small" }, h("span", { class: "visually-hidden" }, t("task.id") + " "), h("code", { id: "task-id" }, this._task.taskId), copyButton(() => this._task.taskId, t("task.id.copy"))),
      h("div", { id: "connection", class: "notice", hidden: true }, h("span", { id: "connection-text" }), button("resume", t("connection.now"), () => this._resume(), "small")),
      h("ol", { id: "stages", class: "stages", "aria-label": t("stages.title"), hidden: true }),
      h("div", { id: "place", class: "place", hidden: true }),
      h("p", { id: "failure", class: "notice bad", hidden: true }),
      h("details", { id: "reasoning", hidden: true }, h("summary", {}, t("output.reasoning")), h("div", { class: "output" })),
      h(
        "div",
        { id: "output-box", hidden: true },
        h(
          "div",
          { class: "output-head" },
          h("h3", { id: "output-title" }, t("output.title")),
          h("div", { class: "segmented compact", role: "group", "aria-labelledby": "output-title" }, modes),
        ),
        output,
        h("p", { id: "differs", class: "hint", hidden: true }, t("output.differs")),
      ),
      h("div", { id: "readings", hidden: true }),
      h("div", { id: "chains", hidden: true }),
      h("dl", { id: "facts", class: "facts" }),
    );
    this._view = new TextView(output, this._mode);
    this._thoughts = new TextView(byId("reasoning").lastChild, "plain");
  }

  _drawNow() {
    const fold = this._fold;
    if (fold === null) return;
    const { ended } = fold;
    const { status } = fold.task;
    const gone = this._source.state === "refused";
    byId("task-state").dataset.status = status;
    setText(byId("task-state"), t(`status.${status}`));
    if (!this._task.api) byId("cut").disabled = ended || gone || this._source.state === "cut";
    byId("cancel-task").disabled = ended || gone;
    this._drawConnection(ended);
    this._drawStages();
    this._drawPlace();
    this._drawFailure();
    this._drawOutput();
    this._drawChains(ended);
    this._drawFacts();
    this._announce();
  }

  _drawConnection(ended) {
    const { state, lastId } = this._source;
    const id = numberOf(lastId);
    const silentMs = this._silentMs();
    let text = "";
    if (state === "refused") text = explain(this._problem);
    else if (ended) text = "";
    else if (state === "cut") text = `${t("connection.cut", { id })} ${t("connection.countdown", { n: Math.max(0, Math.ceil((this._back - Date.now()) / 1000)) })}`;
    else if (state === "lost") text = t("connection.lost", { id });
    else if (state === "connecting" && this._chains.length) text = t("connection.again", { id });
    else if (silentMs) text = t("connection.silent", { time: wholeUnits(Math.floor(silentMs / 1000) * 1000) });
    byId("connection").hidden = text === "";
    byId("connection").className = `notice connection ${state === "refused" ? "bad" : "warn"}`;
    setText(byId("connection-text"), text);
    byId("resume").hidden = state !== "cut";
  }

  _drawPlace() {
    const box = byId("place");
    const { position, status, estimatedWaitMs, estimatedWaitLowMs, estimatedWaitHighMs } = this._fold.task;
    box.hidden = status !== "queued" || position === null;
    if (box.hidden) return;
    const passed = Date.now() - this._fold.placedAt;
    const left = ms => duration(Math.max(0, ms - passed));
    let wait = t("place.unknown");
    if (estimatedWaitLowMs !== null && estimatedWaitHighMs > passed) wait = t("place.between", { low: left(estimatedWaitLowMs), high: left(estimatedWaitHighMs) });
    else if (estimatedWaitMs !== null) wait = estimatedWaitMs - passed >= 1000 ? t("place.wait", { wait: left(estimatedWaitMs) }) : t("place.soon");
    const before = position - 1;
    draw(box, [position, wait], () => [
      h("div", { class: "place-number num", id: "position" }, number(position)),
      h(
        "div",
        {},
        h("div", { class: "place-what" }, before ? t("place.before", { n: number(before) }) : t("place.next")),
        h("div", { class: "muted", id: "wait" }, wait),
      ),
    ]);
  }

  /** The stages of a chain in one line, each with its status. */
  _drawStages() {
    const stages = this._fold.stages.map(({ name, status }) => [name, status]);
    byId("stages").hidden = stages.length === 0;
    const text = status => (has(`status.${status}`) ? t(`status.${status}`) : status);
    draw(byId("stages"), stages, () =>
      stages.map(([name, status], at) => h("li", { dataset: { state: status } }, h("b", {}, name || `${at + 1}`), " ", h("span", { class: "muted" }, text(status)))),
    );
  }

  _drawFailure() {
    const box = byId("failure");
    const { status, error, cancelledBy: by } = this._fold.task;
    box.hidden = status !== "failed" && status !== "cancelled";
    if (box.hidden) return;
    box.className = status === "failed" ? "notice bad" : "notice";
    if (status === "cancelled") setText(box, t(by === "client" ? "failure.cancelled" : "failure.cancelledBy", { by }));
    else {
      const text = explainCode(error.code, error.message);
      const more = error.retryable ? ` ${t("failure.retryable")}` : "";
      setText(box, `${text}${text === error.message ? "" : ` (${error.message})`} [${error.code}]${more}`);
    }
  }

  _drawOutput() {
    const { text, reasoning, differs, ended } = this._fold;
    const { status } = this._fold.task;
    byId("output-box").hidden = this._readings !== null || (!text && status !== "executing" && status !== "completed");
    byId("reasoning").hidden = !reasoning;
    byId("differs").hidden = !differs;
    byId("output").classList.toggle("writing", status === "executing");
    this._view.show(text, ended);
    this._thoughts.show(reasoning);
  }

  _drawChains(ended) {
    const box = byId("chains");
    box.hidden = !this._chains.length;
    if (box.hidden) return;
    const { events, missing, doubled } = this._source;
    const total = Math.max(events, 1);
    const bars = this._chains.map((chain, index) => {
      const bar = h("div", { class: `chain series-${index % 6}`, title: t("chains.bar", { from: chain.from, to: chain.to }) });
      bar.style.flexGrow = String(chain.events);
      if (chain.events / total > 0.12) bar.textContent = chain.from === chain.to ? chain.from : `${chain.from} … ${chain.to}`;
      return bar;
    });
    const whole = missing === 0 && doubled === 0;
    replace(
      box,
      h("div", { class: "chain-bars", "aria-hidden": "true" }, bars),
      h(
        "p",
        { class: `hint ${whole ? "" : "bad"}`, id: "integrity" },
        t("chains.count", { n: number(events) }),
        " ",
        t("chains.connections", { n: this._chains.length }),
        " ",
        whole ? t(ended ? "chains.whole" : "chains.wholeSoFar") : t("chains.broken", { missing, doubled }),
      ),
    );
  }

  _drawFacts() {
    const { task, timings, enqueuedAt, stages } = this._fold;
    const { waitedMs, firstMs, ranMs, perSecond } = timings;
    const tokens = tokensOf(task.usage);
    const reported = this._task.api ? null : waitedMs; // only a task's own log says when it began to run
    const waiting = task.status === "queued" ? Date.now() - enqueuedAt : reported;
    const facts = [
      ["waited", waiting === null ? null : duration(waiting)],
      ["first", firstMs === null ? null : duration(firstMs)],
      [this._task.api ? "total" : "ran", ranMs === null ? null : duration(ranMs)],
      ["tokens", tokens.output === null ? null : t("facts.inOut", { input: number(tokens.input), output: number(tokens.output) })],
      ["cached", tokens.cached ? number(tokens.cached) : null],
      ["thoughts", tokens.reasoning ? number(tokens.reasoning) : null],
      ["speed", perSecond === null ? null : t("facts.perSecond", { n: number(perSecond) })],
      ["finish", task.finishReason],
      ["model", task.model],
      ["queue", task.queue],
      ["attempt", task.attempt > 1 && !stages.length ? number(task.attempt) : null],
    ].filter(([, value]) => value !== null);
    draw(byId("facts"), facts, () => facts.map(([name, value]) => h("div", {}, h("dt", {}, t(`facts.${name}`)), h("dd", { dataset: { fact: name } }, value))));
  }

  _announce() {
    const { status, position } = this._fold.task;
    const news = status === "queued" && position ? t("said.place", { n: position }) : t(`status.${status}`);
    if (news === this._saidState) return;
    this._saidState = news;
    this._said(news);
  }

  _tick() {
    if (this._fold === null || !this._source) return;
    if (this._source.state === "cut" && this._back && Date.now() >= this._back) this._resume();
    else if (this._fold.task.status === "queued" || this._source.state === "cut" || this._silentMs()) this._draw();
  }
}

/** Draw a box again if `shown`, what its content depends on, is not what it was. */
function draw(box, shown, content) {
  const key = JSON.stringify(shown);
  if (box.dataset.key === key) return;
  box.dataset.key = key;
  replace(box, content());
}
