// One task as the reader sees it: its place in the queue, its connection, its output, its figures.

import { call, explain, explainCode } from "../common/api.js";
import { byId, copy, eachFrame, h, radios, replace, setText } from "../common/dom.js";
import { duration, number, wholeUnits } from "../common/format.js";
import { has, t } from "../common/i18n.js";
import { TextView } from "../common/markdown.js";
import { copyButton, toast } from "../common/page.js";
import { Follower, numberOf } from "../common/sse.js";
import { ApiRequest } from "./apis.js";
import { TaskFold, placeOf, tokensOf } from "./fold.js";
import { Readings } from "./readings.js";

const BACK_AFTER_S = 4;
const SILENT_MS = 8000;
const MAX_DOTS = 14;
const ENDED = new Set(["completed", "failed", "cancelled"]);

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
    this._view = null;
    this._thoughts = null;
    this._task = null;
    this._placeAt = 0;
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

  // ---- three ways to get a task ----------

  /** Follow a task that was just accepted: `accepted` is the gateway's 202. `readings`: show them side by side. */
  follow(accepted, { headers, steps, readings, user }) {
    this.close();
    this._task = { taskId: accepted.taskId, streamUrl: accepted.streamUrl, headers, steps, user };
    this._fold = new TaskFold(accepted.taskId);
    this._fold.stages = accepted.stages ?? [];
    this._setPlace(placeOf(accepted));
    this._begin(readings);
  }

  /** Follow a task by its link alone. */
  followLink({ taskId, streamUrl, headers, user }) {
    this.close();
    this._task = { taskId, streamUrl, headers, user, steps: [{ do: "link", url: streamUrl }] };
    this._fold = new TaskFold(taskId);
    this._begin(false);
  }

  _begin(readings) {
    this._build();
    if (readings) this._readings = new Readings(byId("readings"), this._task, this._fold);
    const { taskId, headers, streamUrl } = this._task;
    this._source = new Follower(streamUrl, {
      onEvent: event => this._take(event),
      onState: (state, problem) => this._onConnection(state, problem),
      renew: async () => (await call(`/api/task/${taskId}`, { headers })).streamUrl,
    });
    this._draw();
    this._tell();
  }

  /** Ask through another API than Fairlane's. Throws Problem when the gateway rejects the request. */
  async ask(api, body, { headers, own, steps }) {
    this.close();
    this._task = { taskId: null, headers, steps, api };
    const sentAt = Date.now();
    const mine = work => (...said) => this._source === source && work(...said);
    const source = new ApiRequest(api, body, {
      headers: { ...headers.wire, ...own },
      onEvent: mine(event => this._take(event)),
      onState: mine((state, problem) => this._onConnection(state, problem)),
    });
    this._source = source;
    const taskId = await source.accepted;
    if (this._source !== source) return;
    this._task.taskId = taskId;
    this._fold = new TaskFold(taskId);
    this._fold.enqueuedAt = sentAt; // all times of this stream are the browser's
    this._build();
    source.go();
    this._draw();
    this._tell();
  }

  // ---- what happens ----------

  _take(event) {
    this._heardAt = Date.now();
    const change = this._fold.feed(event);
    if (this._fold.place && event.event === "queued") this._setPlace(this._fold.place);
    if (change === "more") this._view.append(event.data.delta);
    else if (change === "thought") this._thoughts.append(event.data.delta);
    else if (change === "new") {
      this._view.set(this._fold.text);
      this._thoughts.set(this._fold.reasoning);
    }
    if (event.id) this._count(event.id);
    if (event.event === "restart") this._chains = [];
    this._readings?.take(event);
    if (ENDED.has(this._fold.state)) this._end();
    this._draw();
  }

  _end() {
    this._view.finish();
    this._back = 0;
    this._readings?.end();
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

  _setPlace(place) {
    this._fold.place = place;
    this._placeAt = Date.now();
  }

  /** How long nothing has come of a task that runs, over an open connection, ms; 0 while that is nothing to speak of. */
  _silentMs() {
    if (this._fold.state !== "executing" || this._source.state !== "open") return 0;
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

  async _copyLink() {
    (await copy(location.href)) ? toast(t("task.link.copied"), "good") : toast(t("copy.failed"), "bad");
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
        h("h2", { id: "task-title", class: "visually-hidden" }, t("task.title")),
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
        h("h2", { id: "task-title" }, t("task.title")),
        h("span", { id: "task-state", class: "chip" }),
        h(
          "div",
          { class: "end" },
          this._task.api ? null : [button("copy-link", t("task.link"), () => this._copyLink(), "quiet"), button("cut", t("task.cut"), () => this._cut())],
          button("cancel-task", t("task.cancel"), () => this._cancel(), "danger"),
        ),
      ),
      h("p", { class: "task-id muted small" }, h("span", { class: "visually-hidden" }, t("task.id") + " "), h("code", { id: "task-id" }, this._task.taskId), copyButton(() => this._task.taskId, t("task.id.copy"))),
      h("div", { id: "connection", class: "notice", hidden: true }),
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
      h("dl", { id: "facts", class: "stats" }),
    );
    this._view = new TextView(output, this._mode);
    this._view.set(this._fold.text);
    this._thoughts = new TextView(byId("reasoning").lastChild, "plain");
    this._thoughts.set(this._fold.reasoning);
    if (ENDED.has(this._fold.state)) this._view.finish();
  }

  _drawNow() {
    const fold = this._fold;
    if (fold === null) return;
    const ended = ENDED.has(fold.state);
    const gone = this._source.state === "refused";
    const state = byId("task-state");
    state.dataset.state = fold.state;
    setText(state, t(`status.${fold.state}`));
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
    const box = byId("connection");
    const { state, lastId } = this._source;
    const id = numberOf(lastId);
    const kind = state === "refused" ? "bad" : "warn";
    let parts = null;
    if (state === "refused") parts = [explain(this._problem)];
    else if (ended) parts = null;
    else if (state === "cut") {
      const seconds = Math.max(0, Math.ceil((this._back - Date.now()) / 1000));
      parts = [
        h("span", {}, h("strong", {}, t("connection.cut", { id })), " ", t("connection.countdown", { n: seconds })),
        h("button", { type: "button", id: "resume", class: "small", on: { click: () => this._resume() } }, t("connection.now")),
      ];
      const [shown, button] = box.children; // keep the button: it may have the focus
      if (!box.hidden && button?.id === "resume") {
        shown.replaceWith(parts[0]);
        return;
      }
    } else if (state === "lost") parts = [t("connection.lost", { id })];
    else if (state === "connecting" && this._chains.length) parts = [t("connection.again", { id })];
    else if (this._silentMs()) parts = [t("connection.silent", { time: wholeUnits(Math.floor(this._silentMs() / 1000) * 1000) })];
    box.hidden = parts === null;
    box.className = `notice connection ${kind}`;
    if (parts) replace(box, parts);
    else box.replaceChildren();
  }

  _drawPlace() {
    const box = byId("place");
    const { place, state } = this._fold;
    box.hidden = state !== "queued" || place === null;
    if (box.hidden) return;
    const passed = Date.now() - this._placeAt;
    const left = ms => Math.max(0, ms - passed);
    let wait = t("place.unknown");
    if (place.lowMs !== null && place.highMs !== null && left(place.highMs) > 0) {
      wait = t("place.between", { low: duration(left(place.lowMs)), high: duration(left(place.highMs)) });
    } else if (place.estimateMs !== null) {
      wait = left(place.estimateMs) >= 1000 ? t("place.wait", { wait: duration(left(place.estimateMs)) }) : t("place.soon");
    }
    if (box.dataset.position !== String(place.position) || !box.children.length) {
      box.dataset.position = place.position;
      const before = place.position - 1;
      const shown = Math.min(before, MAX_DOTS);
      const dots = Array.from({ length: shown }, () => h("i"));
      replace(
        box,
        h("div", { class: "place-number num", id: "position" }, number(place.position)),
        h(
          "div",
          { class: "place-words" },
          h("div", { class: "place-what" }, before ? t("place.before", { n: number(before) }) : t("place.next")),
          h("div", { class: "muted", id: "wait" }),
          h(
            "div",
            { class: "dots", "aria-hidden": "true" },
            dots,
            before > shown ? h("span", { class: "muted small" }, `+${number(before - shown)}`) : null,
            h("b"),
          ),
        ),
      );
    }
    setText(byId("wait"), wait);
  }

  /** The stages of a chain in one line, each with how it stands. */
  _drawStages() {
    const box = byId("stages");
    const { stages } = this._fold;
    box.hidden = stages.length === 0;
    const key = JSON.stringify(stages.map(({ name, status }) => [name, status]));
    if (box.dataset.key === key) return;
    box.dataset.key = key;
    const word = status => (has(`status.${status}`) ? t(`status.${status}`) : status);
    replace(
      box,
      stages.map(({ name, status }, at) =>
        h("li", { dataset: { state: status } }, h("b", {}, name || `${at + 1}`), " ", h("span", { class: "muted" }, word(status))),
      ),
    );
  }

  _drawFailure() {
    const box = byId("failure");
    const { state, error, by } = this._fold;
    box.hidden = state !== "failed" && state !== "cancelled";
    if (box.hidden) return;
    box.className = state === "failed" ? "notice bad" : "notice";
    if (state === "cancelled") setText(box, t(by === "client" ? "failure.cancelled" : "failure.cancelledBy", { by }));
    else {
      const said = explainCode(error.code, error.error);
      const more = error.retryable ? ` ${t("failure.retryable")}` : "";
      setText(box, `${said}${said === error.error ? "" : ` (${error.error})`} [${error.code}]${more}`);
    }
  }

  _drawOutput() {
    const { text, reasoning, differs, state } = this._fold;
    byId("output-box").hidden = this._readings !== null || (!text && state !== "executing" && state !== "completed");
    const thoughts = byId("reasoning");
    thoughts.hidden = !reasoning;
    byId("differs").hidden = !differs;
    byId("output").classList.toggle("writing", state === "executing");
  }

  _drawChains(ended) {
    const box = byId("chains");
    box.hidden = !this._chains.length;
    if (box.hidden) return;
    const { events, missing, doubled } = this._source;
    const total = Math.max(events, 1);
    const bars = this._chains.map((chain, index) => {
      const bar = h("div", { class: `chain chain-${index % 6}`, title: t("chains.bar", { from: chain.from, to: chain.to }) });
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
    const fold = this._fold;
    const { waitedMs, firstMs, ranMs, perSecond } = fold.timings;
    const tokens = tokensOf(fold.usage);
    const told = this._task.api ? null : waitedMs; // only a task's own log says when it began to run
    const waiting = fold.state === "queued" ? Date.now() - fold.enqueuedAt : told;
    const facts = [
      ["waited", waiting === null ? null : duration(waiting)],
      ["first", firstMs === null ? null : duration(firstMs)],
      [this._task.api ? "total" : "ran", ranMs === null ? null : duration(ranMs)],
      ["tokens", tokens.output === null ? null : t("facts.inOut", { input: number(tokens.input), output: number(tokens.output) })],
      ["cached", tokens.cached ? number(tokens.cached) : null],
      ["thoughts", tokens.reasoning ? number(tokens.reasoning) : null],
      ["speed", perSecond === null ? null : t("facts.perSecond", { n: number(perSecond) })],
      ["finish", fold.finishReason],
      ["model", fold.model],
      ["queue", fold.queue],
      ["attempt", fold.attempt > 1 ? number(fold.attempt) : null],
    ].filter(([, value]) => value !== null);
    const box = byId("facts");
    const key = JSON.stringify(facts);
    if (box.dataset.key === key) return;
    box.dataset.key = key;
    replace(
      box,
      facts.map(([name, value]) => h("div", {}, h("dt", {}, t(`facts.${name}`)), h("dd", { dataset: { fact: name } }, value))),
    );
  }

  _announce() {
    const { state, place } = this._fold;
    const news = state === "queued" && place ? t("said.place", { n: place.position }) : t(`status.${state}`);
    if (news === this._saidState) return;
    this._saidState = news;
    this._said(news);
  }

  _tick() {
    if (this._fold === null || !this._source) return;
    if (this._source.state === "cut" && this._back && Date.now() >= this._back) this._resume();
    else if (this._fold.state === "queued" || this._source.state === "cut" || this._silentMs()) this._draw();
  }
}
