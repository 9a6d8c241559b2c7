// A burst: several users send many tasks at the same time, and the page draws who is served when.

import { call, explain } from "../common/api.js";
import { byId, h, labelled, replace, setText } from "../common/dom.js";
import { duration, number, percent } from "../common/format.js";
import { t } from "../common/i18n.js";
import { toast } from "../common/page.js";
import { events } from "../common/sse.js";
import { plainTable } from "../common/table.js";
import { Chart } from "./chart.js";
import { CodePanel } from "./code.js";
import { submittedAt } from "./fold.js";

const MAX_TASKS = 120;
const MAX_CONCURRENT = 4; // a browser has six connections to a host
const ROUND_MS = 300;
const LONGEST_MS = 30 * 60_000;
const ENDED = new Set(["completed", "failed", "cancelled"]);

const EXAMPLE = [
  { user: "alice", tier: "free", count: 16 },
  { user: "bob", tier: "free", count: 4 },
  { user: "carol", tier: "paid", count: 4 },
];

export class Burst {
  constructor({ form, chart, code, page, story, said, headersFor }) {
    this._form = form;
    this._panel = chart;
    this._code = new CodePanel(code, "burst-code-title");
    this._page = page;
    this._story = story;
    this._said = said;
    this._headersFor = headersFor;
    this._me = undefined;
    this._models = [];
    this._model = ""; // as the reader chose it
    this._groups = EXAMPLE.map(group => ({ ...group }));
    this._run = null;
    this._chart = null;
    form.addEventListener("submit", event => {
      event.preventDefault();
      this._start();
    });
    this.draw();
  }

  setMe(me) {
    this._me = me;
    this._drawForm();
  }

  setModels(models) {
    this._models = models;
    this._drawForm();
  }

  draw() {
    this._drawForm();
    this._drawPanel();
    this._code.draw();
  }

  // ---- the form ----------

  _drawForm() {
    const value = (id, otherwise) => byId(id)?.value ?? otherwise;
    const [prompt, tokens] = [value("burst-prompt", ""), value("burst-tokens", "24")];
    const change = event => (this._model = event.target.value);
    const names = this._models.length ? this._models : ["default"];
    const focused = document.activeElement?.id;
    replace(
      this._form,
      h("h2", { id: "burst-title" }, t("tabs.burst")),
      h("p", { class: "muted" }, t("burst.intro")),
      labelled(t("ask.model"), h("select", { id: "burst-model", on: { change } }, names.map(name => h("option", { value: name, selected: name === this._model }, name)))),
      h(
        "div",
        { class: "row" },
        labelled(t("ask.prompt"), h("input", { id: "burst-prompt", value: prompt || t("burst.prompt"), autocomplete: "off" }), "field grow"),
        labelled(t("more.maxTokens"), h("input", { id: "burst-tokens", type: "number", min: 1, max: 4096, value: tokens })),
      ),
      this._me?.delegating ? this._groupFields() : this._countField(),
      h("p", { class: "hint" }, this._me && !this._me.delegating ? t("burst.oneUser") : t("burst.hint", { n: MAX_TASKS })),
      h(
        "div",
        { class: "actions" },
        h("button", { type: "submit", class: "primary", id: "burst-send", disabled: Boolean(this._run?.going) }, t("burst.send")),
        h("button", { type: "button", id: "burst-stop", class: "danger", disabled: !this._run?.going, on: { click: () => this._cancelAll() } }, t("burst.cancel")),
      ),
      h("p", { class: "notice bad", id: "burst-problem", role: "alert", hidden: true }),
    );
    if (focused && this._form.contains(byId(focused))) byId(focused).focus();
  }

  /** A user, a tier and a number of tasks for each group; a group without tasks sends none. */
  _groupFields() {
    const rows = this._groups.map((group, index) => {
      const named = name => ({ id: `burst-${name}-${index}`, "aria-label": t(`burst.${name}.of`, { n: index + 1 }), on: { input: event => (group[name] = event.target.value) } });
      const fields = [
        h("input", { ...named("user"), value: group.user, autocomplete: "off", maxlength: 128, spellcheck: "false" }),
        h("select", named("tier"), this._me.tiers.map(tier => h("option", { value: tier, selected: tier === group.tier }, tier))),
        h("input", { ...named("count"), value: group.count, type: "number", min: 0, max: MAX_TASKS }),
      ];
      return h("tr", {}, fields.map(field => h("td", {}, field)));
    });
    return h("div", { class: "field" }, h("div", { class: "label" }, t("burst.groups")), plainTable(["ask.user", "ask.tier", "burst.count"], rows, { class: "groups" }));
  }

  _countField() {
    const input = event => (this._groups[0].count = event.target.value);
    return labelled(t("burst.count"), h("input", { id: "burst-count-0", type: "number", min: 1, max: MAX_TASKS, value: this._groups[0].count, on: { input } }));
  }

  _wanted() {
    const groups = this._me?.delegating ? this._groups : [{ user: "", tier: "", count: this._groups[0].count }];
    return groups
      .map(group => ({ ...group, user: group.user.trim(), count: Math.floor(Number(group.count)) }))
      .filter(group => group.count > 0);
  }

  // ---- the burst ----------

  async _start() {
    if (this._run?.going) return;
    const complain = text => {
      const box = byId("burst-problem");
      box.hidden = false;
      setText(box, text);
    };
    if (this._page.me === null) {
      await this._page.askForKey(t("ask.needsKey"));
      if (!this._page.me) return;
    }
    const groups = this._wanted();
    const total = groups.reduce((sum, group) => sum + group.count, 0);
    if (total < 1 || total > MAX_TASKS) {
      complain(t("burst.tooMany", { n: MAX_TASKS }));
      return;
    }
    const body = {
      model: byId("burst-model").value,
      messages: [{ role: "user", content: byId("burst-prompt").value }],
      max_tokens: Math.max(1, Math.floor(Number(byId("burst-tokens").value)) || 24),
      async: true,
      mode: "stream",
    };
    const named = groups.map(group => ({
      ...group,
      name: group.user || (this._me?.user ?? ""),
      headers: this._headersFor(group.user, group.tier),
    }));
    const run = new Run(named, body);
    this._run = run;
    this._code.show(this._story({ headers: {}, steps: [{ do: "burst", groups, body }] }));
    this._drawForm();
    this._drawPanel();
    const timer = setInterval(() => this._drawRun(), 200);
    try {
      await run.go();
    } finally {
      clearInterval(timer);
      if (this._run === run) {
        this._drawForm();
        this._drawRun();
        this._said(t("burst.over"));
        if (run.problem) complain(explain(run.problem));
      }
    }
  }

  async _cancelAll() {
    const failed = await this._run.cancel();
    if (failed) toast(explain(failed), "bad");
  }

  // ---- the chart ----------

  _drawPanel() {
    const title = h("h2", { id: "burst-chart-title" }, t("burst.chart"));
    if (!this._run) {
      replace(
        this._panel,
        title,
        h("div", { class: "empty" }, h("p", { class: "empty-title" }, t("burst.empty")), h("p", {}, t("burst.empty.more"))),
      );
      return;
    }
    const chart = h("div", { id: "burst-bars" });
    replace(
      this._panel,
      h("div", { class: "panel-head" }, title, h("span", { class: "muted small num", id: "burst-progress" })),
      h("p", { class: "hint" }, t("burst.chart.hint")),
      chart,
      h("div", { class: "table-wrap", tabindex: 0, id: "burst-table" }),
    );
    this._chart = new Chart(chart);
    this._drawRun();
  }

  _drawRun() {
    const run = this._run;
    const { tasks, groups } = run;
    const over = tasks.filter(task => task.endedAt !== null).length;
    setText(byId("burst-progress"), t("burst.progress", { done: number(over), n: number(tasks.length) }));
    this._chart.draw(groups, tasks, run.now());
    this._drawTable();
  }

  _drawTable() {
    const run = this._run;
    const served = run.served();
    const rows = run.groups.map((group, index) => {
      const mine = run.tasks.filter(task => task.group === index);
      const started = mine.filter(task => task.startedAt !== null);
      const waits = started.map(task => task.startedAt - task.sentAt);
      const meanMs = run.meanWaitMs(index);
      const first = served.findIndex(task => task.group === index);
      const cells = [
        group.tier || "–",
        `${number(mine.filter(task => task.state === "completed").length)} / ${number(mine.length)}`,
        meanMs === null ? "–" : duration(meanMs),
        waits.length ? duration(Math.min(...waits)) : "–",
        first < 0 ? "–" : number(first + 1),
        served.length ? percent(started.length / served.length) : "–",
      ];
      return h("tr", {}, h("th", { scope: "row" }, h("i", { class: `swatch series-${index % 6}` }), group.name), cells.map(cell => h("td", { class: "num" }, cell)));
    });
    const heads = ["ask.user", "ask.tier", ...["done", "meanWait", "firstWait", "turn", "share"].map(name => `burst.head.${name}`)];
    replace(byId("burst-table"), plainTable(heads, rows, { "aria-label": t("burst.chart") }));
  }
}

/** One burst under way: submits every task once, and asks until each has ended. */
class Run {
  /** `groups`: { name, count, headers }. */
  constructor(groups, body) {
    this.groups = groups;
    this.tasks = this.groups.flatMap((group, index) =>
      Array.from({ length: group.count }, () => ({
        group: index,
        name: group.name,
        id: null,
        state: "new",
        sentAt: null,
        startedAt: null,
        endedAt: null,
      })),
    );
    this.problem = null;
    this.going = true; // until `go` is over
    this._body = body;
    this.cancelled = false;
    this._endedAt = null;
    this._ahead = 0; // the gateway's clock before the browser's, ms
  }

  /** Now, or when it was over, ms, on the gateway's clock as all the times here. */
  now() {
    return this._endedAt ?? Date.now() + this._ahead;
  }

  /** How long the tasks of a group waited on average, those that still wait included, ms; null before the first is sent. */
  meanWaitMs(group) {
    const sent = this.tasks.filter(task => task.group === group && task.sentAt !== null);
    const waited = sent.reduce((sum, task) => sum + Math.max(0, (task.startedAt ?? task.endedAt ?? this.now()) - task.sentAt), 0);
    return sent.length ? waited / sent.length : null;
  }

  /** The tasks that have got a slot, in the order in which they did. */
  served() {
    return this.tasks.filter(task => task.startedAt !== null).sort((a, b) => a.startedAt - b.startedAt);
  }

  async go() {
    try {
      await several(this.tasks, task => this._submit(task));
      const until = Date.now() + LONGEST_MS;
      for (;;) {
        const open = this.tasks.filter(task => task.id !== null && task.endedAt === null);
        if (!open.length || Date.now() > until) return;
        const began = Date.now();
        await several(open, task => this._look(task));
        await new Promise(resolve => setTimeout(resolve, Math.max(0, ROUND_MS - (Date.now() - began))));
      }
    } finally {
      this.going = false;
      this._endedAt = Math.max(...this.tasks.map(task => task.endedAt ?? 0));
    }
  }

  async _submit(task) {
    if (this.cancelled) return;
    try {
      const accepted = await call("/api/openai", { body: this._body, headers: this.groups[task.group].headers.wire });
      task.id = accepted.taskId;
      task.state = "queued";
      task.sentAt = submittedAt(task.id);
      this._ahead = task.sentAt - Date.now();
    } catch (problem) {
      task.state = "refused";
      task.sentAt = task.endedAt = this.now();
      this.problem = problem;
    }
  }

  async _look(task) {
    const headers = this.groups[task.group].headers.wire;
    try {
      const answer = await call(`/api/task/${task.id}`, { headers });
      if (answer.status !== "queued") task.startedAt ??= answer.startedAt ?? null;
      if (ENDED.has(answer.status)) await this._readTimes(task, headers);
      task.state = answer.status;
    } catch (problem) {
      if (problem.status === 404) task.endedAt = this.now();
      this.problem = problem;
    }
  }

  /** When it began and ended, from its log: a poll may have come too late to see it run. */
  async _readTimes(task, headers) {
    for await (const { event, data } of events(`/api/task/${task.id}/events`, { headers, maxRetries: 0 })) {
      if (event === "start") task.startedAt = data.ts;
      else if (event === "done" || event === "error" || event === "cancelled") task.endedAt = data.ts;
    }
  }

  /** Cancel whatever has not ended; the first problem, if there is one. */
  async cancel() {
    this.cancelled = true;
    let failed = null;
    const open = this.tasks.filter(task => task.id !== null && task.endedAt === null);
    await several(open, async task => {
      const headers = this.groups[task.group].headers.wire;
      await call(`/api/task/${task.id}/cancel`, { method: "POST", headers }).catch(problem => (failed ??= problem));
    });
    return failed;
  }
}

/** Do `work` for every item, a few at a time, in order. */
async function several(items, work) {
  const queue = [...items];
  const hand = async () => {
    while (queue.length) await work(queue.shift());
  };
  await Promise.all(Array.from({ length: MAX_CONCURRENT }, hand));
}
