// The overview: figures, plots, queues, models, workers.

import { call } from "../common/api.js";
import { h, later, replace, setText } from "../common/dom.js";
import { duration, number, percent, wholeUnits } from "../common/format.js";
import { onLanguage, t } from "../common/i18n.js";
import { copyButton } from "../common/page.js";
import { LiveTable, gauge, meter, rowButton } from "../common/table.js";
import { breakerName, cancelWaiting, change, drain, forceBreaker, pause, settingName, throttle } from "./actions.js";
import { LatencyPlot, RatePlot, WaitingPlot } from "./charts.js";
import { panel, segmented } from "./parts.js";

const HISTORY_MS = 10_000;
const METRICS_DOC = "https://github.com/fairlane/fairlane/blob/main/docs/metrics.md";
const MEASURES = [
  ["totalMs", "total"],
  ["waitMs", "wait"],
  ["firstOutputMs", "first"],
];
const MAX_USERS = 10;
const MAX_CODES = 6;
const MAX_REASONS = 2;
const SILENT_TASK_MS = 60_000; // as `fairlane status` has it
const MANY = 0.02;
const NOTHING = { acceptedLastMinute: 0, endedLastMinute: 0, cancelledLastMinute: 0, outputTokensLastMinute: 0 };

const sentence = key => h("p", { dataset: { t: key } }, t(key));

/** What to do while no worker is connected. */
function firstWorker() {
  const command = `fairlane worker simulate --model demo --gateway ${location.origin}`;
  return [sentence("workers.empty"), sentence("workers.first"), h("p", {}, h("code", { class: "command" }, command), " ", copyButton(() => command))];
}

/**
 * A model's row, with how long its waiting tasks will take if none is added (`drainMs`, null: it does not end) and by how many tasks
 * a minute its queue grows (`growth`). By what was `finished` in the last minute; if all that waits came within it, by slots and mean run.
 */
function withDrain(row) {
  const { acceptedLastMinute: came, endedLastMinute: ended, cancelledLastMinute: cancelled } = row.done ?? NOTHING;
  const finished = ended - cancelled;
  if (!row.waiting) return { ...row, drainMs: 0, growth: 0, finished };
  const slots = Math.min(row.limit ?? row.slots, row.slots);
  const fresh = !row.done || row.waiting <= came;
  const perMinute = fresh && row.meanRunMs ? Math.max(finished, (60_000 * slots) / row.meanRunMs) : finished;
  const stopped = row.paused || (row.endpoint ? row.unserved : !row.workers) || Object.keys(row.blocked).length || !perMinute;
  return { ...row, drainMs: stopped ? null : (60_000 * row.waiting) / perMinute, growth: came - ended, finished };
}

export class Overview {
  constructor() {
    this._history = null;
    this._picture = null;
    this._measure = 0;
    this._figures = new Figures();
    this._backlog = new WaitingPlot();
    this._rates = new RatePlot();
    this._times = new LatencyPlot();
    const measures = MEASURES.map(([, short]) => short);
    const choice = segmented("measure", measures.map(value => ({ value, key: `plot.${value}` })), measures[0], "plot.choice", short => this._choose(measures.indexOf(short)));
    this._codes = h("div", { class: "codes-lists" });
    this._tables = TABLES.map(({ make }) => make(() => this._readUsers()));
    this._empties = TABLES.map(({ empty }) => empty()).map(content => h("div", { class: "empty", hidden: true }, content));
    this._counts = TABLES.map(() => h("span", { class: "muted small" }));
    const tables = TABLES.map(({ name, hint }, index) => panel(name, `${name}.title`, { hint, note: this._counts[index] }, this._empties[index], this._tables[index].element));
    this._panelOfUpstreams = tables[3];
    this._panelOfUpstreams.hidden = true;
    this.element = h(
      "div",
      { class: "grid" },
      this._figures.element,
      h("p", { class: "muted small" }, h("span", { dataset: { t: "plot.about" } }, t("plot.about")), " ", h("a", { href: METRICS_DOC, rel: "noopener", dataset: { t: "plot.docs" } }, t("plot.docs"))),
      h(
        "div",
        { class: "grid plots" },
        panel("waiting", "plot.waiting", {}, this._backlog.element),
        panel("rate", "plot.rate", {}, this._rates.element),
        panel("time", "plot.time", { note: h("div", { class: "end" }, choice) }, this._times.element),
        panel("codes", "codes.title", {}, this._codes),
      ),
      tables,
    );
    this._stopped = false;
    this._calledOff = {}; // by path
    this._users = null;
    this._forget = onLanguage(() => this._redraw());
    this._readHistory();
    this._readUsers();
  }

  close() {
    this._stopped = true;
    for (const callOff of Object.values(this._calledOff)) callOff();
    this._forget();
    this._backlog.close();
    this._rates.close();
    this._times.close();
    for (const table of this._tables) table.close();
  }

  /** Show a picture of the feed. */
  show(picture) {
    this._picture = picture;
    const known = picture.asOf !== null;
    const done = this._history?.models ?? {};
    const none = done.other ? null : NOTHING; // with very many models some are counted together
    const models = picture.models.map(row => withDrain({ ...row, now: picture.asOf ?? picture.now, done: this._history && (done[row.model] ?? none) }));
    this._figures.show(picture, this._history, models);
    this._fill(0, this._users?.users ?? [], row => row.user, this._users !== null);
    if (this._users) setText(this._counts[0], this._users.number > this._users.users.length || !this._users.complete ? t("users.of", { n: this._users.number }) : "");
    this._fill(1, picture.queues, row => row.queue, known);
    this._fill(2, models, row => row.model, known);
    const upstreams = models.flatMap(({ model, now, upstreams: all }) => (all ?? []).map(row => ({ ...row, model, now })));
    this._fill(3, upstreams, row => `${row.model}\n${row.upstream}`);
    this._panelOfUpstreams.hidden = upstreams.length === 0;
    const silentMs = 2 * picture.gateway.heartbeatMs;
    this._fill(4, picture.workers.map(row => ({ ...row, here: row.replica === picture.gateway.replica, silent: row.version >= 2 && row.heartbeatAgeMs > silentMs })), row => row.workerId);
  }

  _fill(index, rows, keyOf, known = true) {
    this._tables[index].update(rows, keyOf);
    this._tables[index].element.hidden = rows.length === 0;
    this._empties[index].hidden = rows.length > 0 || !known;
    setText(this._counts[index], rows.length > 8 ? number(rows.length) : "");
  }

  _redraw() {
    this._drawHistory();
    if (this._picture) this.show(this._picture);
  }

  // ---- what happened ----------

  /** Read a path now and periodically; `take` gets each answer. */
  async _read(path, take) {
    this._calledOff[path]?.();
    try {
      const answer = await call(path);
      if (this._stopped) return;
      take(answer);
    } catch {
      // the banner says what is wrong; what is shown stays
    }
    if (!this._stopped) this._calledOff[path] = later(() => this._read(path, take), HISTORY_MS);
  }

  _readHistory() {
    this._read("/api/admin/timeseries", history => {
      this._history = history;
      this._drawHistory();
    });
  }

  _readUsers() {
    this._read(`/api/admin/users?limit=${MAX_USERS}`, users => {
      this._users = users;
      if (this._picture) this.show(this._picture);
    });
  }

  _drawHistory() {
    const history = this._history;
    if (history === null) return;
    this._backlog.show(history);
    this._rates.show(history);
    this._times.show(history, ...MEASURES[this._measure]);
    this._drawCodes();
    if (this._picture) this.show(this._picture);
  }

  _drawCodes() {
    const { failures, rejections } = this._history.total;
    const none = t("codes.none");
    replace(this._codes, codeList("codes.failures", failures, "--bad", true, none), codeList("codes.rejections", rejections, "--warn", false, none));
  }

  _choose(index) {
    this._measure = index;
    this._drawHistory();
  }
}

function codeList(key, entries, tone, linked, none) {
  const most = entries[0]?.count ?? 1;
  const items = entries.slice(0, MAX_CODES).map(({ code, category, count }) => {
    const name = linked && code !== "other" ? h("a", { class: "name", href: `#/tasks?status=failed&code=${encodeURIComponent(code)}` }, code) : h("span", { class: "name" }, code);
    if (category && category !== code) name.title = t("codes.category", { category });
    return h("li", {}, name, h("span", { class: "num" }, number(count)), meter(count / most, { tone: `var(${tone})` }));
  });
  return h("div", {}, h("h3", { class: "codes-head" }, t(key)), items.length ? h("ul", { class: "codes" }, items) : h("p", { class: "muted small" }, none));
}

// ---- the figures at the top ----------

class Figures {
  constructor() {
    this._cells = new Map();
    this.element = h("dl", { class: "panel figures" });
    for (const name of ["waiting", "drain", "running", "rate", "total", "failed", "rejected", "workers"]) {
      const cell = { value: h("dd", { dataset: { figure: name } }), more: h("dd", { class: "more" }) };
      this._cells.set(name, cell);
      this.element.append(h("div", {}, h("dt", { dataset: { t: `figure.${name}` } }, t(`figure.${name}`)), cell.value, cell.more));
    }
  }

  show(picture, history, models) {
    const { counts, queues, workers, replicas } = picture;
    const oldest = Math.max(0, ...queues.map(row => row.oldestWaitMs ?? 0));
    const slots = workers.reduce((sum, row) => sum + (row.draining ? 0 : row.slots), 0);
    this._set("waiting", number(counts.queued), counts.queued && oldest ? t("figure.waiting.more", { age: duration(oldest) }) : "");
    const waiting = models.filter(row => row.waiting);
    const growth = waiting.reduce((sum, row) => sum + row.growth, 0);
    const drainMs = waiting.some(row => row.drainMs === null) ? null : Math.max(0, ...waiting.map(row => row.drainMs));
    const reasons = [...new Set(waiting.map(blockedText).filter(Boolean))];
    const trend = reasons.length ? reasons.slice(0, MAX_REASONS).join("; ") : waiting.length && history ? trendText(growth) : "";
    this._set("drain", waiting.length ? drainText(drainMs, growth) : "–", trend, growth > 0 || drainMs === null ? "warn" : "");
    this._set("running", number(counts.executing), t("figure.running.more", { n: number(slots) }));
    const overruled = replicas.filter(row => row.configuration && !row.configuration.effective).map(row => row.replica);
    const notReloaded = replicas.filter(row => row.reloadError).map(row => row.replica);
    const differ = new Set(replicas.map(row => row.keysHash).filter(Boolean)).size > 1;
    const troubles = [
      overruled.length ? t("figure.workers.overruled", { names: overruled.join(", ") }) : "",
      notReloaded.length ? t("figure.workers.reload", { names: notReloaded.join(", ") }) : "",
      differ ? t("figure.workers.keys") : "",
      new Set(replicas.map(row => row.routesHash).filter(Boolean)).size > 1 ? t("figure.workers.routes") : "",
    ].join("");
    const about = t("figure.workers.more", { n: replicas.length }) + troubles;
    this._set("workers", number(workers.length), picture.asOf === null ? "" : about, workers.length && !troubles ? "" : "warn");
    if (history === null) return;
    const { total } = history;
    const last = count => history[count].slice(-60_000 / history.bucketMs).reduce((sum, value) => sum + value, 0);
    const ended = total.completed + total.failed + total.cancelled;
    this._set("rate", number(last("completed") + last("failed")), t("figure.rate.more", { rate: number(last("accepted")) }));
    this._set("total", duration(total.totalMs.p50), total.totalMs.p95 === null ? "" : t("figure.total.more", { time: duration(total.totalMs.p95) }));
    this._set("failed", number(total.failed), ended ? t("figure.failed.more", { share: percent(total.failed / ended, 1) }) : "", total.failed > MANY * ended ? "bad" : "");
    const asked = total.accepted + total.rejected;
    this._set("rejected", number(total.rejected), asked ? t("figure.rejected.more", { share: percent(total.rejected / asked, 1) }) : "", total.rejected > MANY * asked ? "warn" : "");
  }

  _set(name, value, more, tone = "") {
    const cell = this._cells.get(name);
    setText(cell.value, value);
    setText(cell.more, more);
    cell.value.className = tone;
  }
}

// ---- tables ----------

const flag = (text, tone = "", title = null) => h("span", { class: `flag ${tone}`, title }, text);

const changedFlag = overrides => {
  const names = Object.keys(overrides ?? {}).filter(name => name !== "paused");
  return names.length ? flag(t("flag.changed"), "info", t("flag.changed.long", { names: names.map(settingName).join(", ") })) : null;
};

const seconds = ms => Math.ceil(ms / 1000) * 1000;

/** How long waiting tasks take; while their number grows, by how much. */
const drainText = (ms, growth) => (growth > 0 ? t("drain.grows", { n: number(growth) }) : ms === null ? t("drain.never") : duration(seconds(ms)));
const trendText = growth => (growth > 0 ? "" : t(growth < 0 ? "drain.shrinks" : "drain.steady", { n: number(-growth) }));

/** Why tasks of a model's row cannot start; "" where all can. */
const blockedText = ({ blocked }) => [...new Set(Object.entries(blocked).map(([queue, reason]) => t(`blocked.${reason}`, { queue })))].join("; ");

/** A duration in whole seconds. */
const about = ms => wholeUnits(seconds(ms));

function limitButtons(kind, name, paused) {
  const what = paused ? "resume" : "pause";
  return h(
    "div",
    {},
    rowButton(what, t(`action.${what}`), () => pause(kind, name, !paused), { label: t(`action.${what}.label`, { name }) }),
    rowButton("change", t("action.change"), () => change(kind, name), { label: t("action.change.label", { name }) }),
  );
}

const fullTone = share => (share >= 0.9 ? "var(--bad)" : share >= 0.6 ? "var(--warn)" : null);

const shareColumn = name => ({
  name,
  class: "num",
  sign: row => (row.share === null ? "–" : percent(row.share, 1)),
  draw: row => (row.share === null ? "–" : h("span", { title: t(`${name}.long`) }, gauge(percent(row.share, 1), row.share))),
});

const userTable = changed =>
  new LiveTable(
    [
      { name: "task.user", sign: row => row.user, draw: row => h("a", { class: "who", href: `#/tasks?user=${encodeURIComponent(row.user)}` }, h("b", {}, row.user)) },
      {
        name: "queue.waiting",
        class: "num",
        sign: row => row.waiting,
        draw: row => h("a", { href: `#/tasks?status=queued&user=${encodeURIComponent(row.user)}` }, number(row.waiting)),
      },
      { name: "queue.running", class: "num", sign: row => number(row.running) },
      { name: "user.tokens", class: "num", sign: row => number(row.tokens) },
      shareColumn("user.share"),
      { name: "user.model", sign: row => row.model ?? "–" },
      {
        name: "",
        class: "end",
        sign: row => `${row.model} ${row.waiting > 0}`,
        draw: (row, current) =>
          row.waiting
            ? h(
                "div",
                {},
                rowButton("throttle", t("action.throttle"), () => throttle(row.model), { label: t("action.throttle.label", { name: row.model }) }),
                rowButton("cancel", t("action.cancel.waiting"), () => cancelWaiting(current(), changed), { label: t("action.cancel.waiting.label", { name: row.user }), danger: true }),
              )
            : null,
      },
    ],
    "users.title",
  );

const queueTable = () =>
  new LiveTable(
    [
      {
        name: "queue.name",
        sign: row => JSON.stringify([row.queue, row.tier, row.mode, row.paused, row.overrides, row.admission, row.blocked]),
        draw: row =>
          h(
            "div",
            { class: "who" },
            h("a", { href: `#/tasks?queue=${encodeURIComponent(row.queue)}` }, h("b", {}, row.queue)),
            row.paused ? flag(t("flag.paused")) : row.blocked ? flag(t(`blocked.${row.blocked}`, { queue: row.queue }), "bad") : null,
            changedFlag(row.overrides),
            row.admission === "adaptive" ? flag(t("queue.adaptive"), "info") : null,
          ),
      },
      {
        name: "queue.waiting",
        class: "num",
        sign: row => `${row.waiting}/${row.maxLength}`,
        draw: row =>
          row.maxLength
            ? gauge(t("queue.of", { n: number(row.waiting), limit: number(row.maxLength) }), row.waiting / row.maxLength, { tone: fullTone(row.waiting / row.maxLength) })
            : number(row.waiting),
      },
      { name: "queue.oldest", class: "num", sign: row => (row.waiting && row.oldestWaitMs !== null ? duration(row.oldestWaitMs) : "–") },
      {
        name: "queue.running",
        class: "num",
        sign: row => (row.maxRunning ? t("queue.of", { n: number(row.running), limit: number(row.maxRunning) }) : number(row.running)),
      },
      { name: "queue.weight", class: "num", sign: row => number(row.weight, 2) },
      shareColumn("queue.share"),
      { name: "queue.wait", class: "num", sign: row => (row.maxWaitMs ? duration(row.maxWaitMs) : t("unlimited")) },
      { name: "", class: "end", sign: row => String(row.paused), draw: row => limitButtons("queue", row.queue, row.paused) },
    ],
    "queues.title",
  );

/** How long a model may be silent, as it holds now, and why. */
const limitLines = limits =>
  ["firstOutput", "silence"]
    .filter(name => limits?.[`${name}Ms`])
    .map(name => {
      const long = [t(`limit.${name}.long`), t(`limit.reason.${limits.reason}`, { wait: duration(limits.waitMs) })];
      const look = { class: limits.reason === "long_queue" ? "sub warn" : "sub", title: long.join(" ") };
      return h("span", look, t(`limit.${name}`, { time: duration(limits[`${name}Ms`]) }));
    });
/** The upstreams of a model's row whose breakers are open, by name. */
const openOf = ({ upstreams }) => (upstreams ?? []).filter(one => one.breaker === "open").map(one => one.upstream || t("upstream.unnamed"));

const modelTable = () =>
  new LiveTable(
    [
      {
        name: "model.name",
        sign: row =>
          JSON.stringify([
            row.model,
            row.paused,
            row.overrides,
            row.cooldownUntil > row.now ? seconds(row.cooldownUntil - row.now) : 0,
            row.nextStartAt > row.now && row.waiting ? seconds(row.nextStartAt - row.now) : 0,
            row.unserved,
            openOf(row),
          ]),
        draw: row =>
          h(
            "div",
            { class: "who" },
            h("a", { href: `#/tasks?model=${encodeURIComponent(row.model)}` }, h("b", {}, row.model)),
            row.paused ? flag(t("flag.paused")) : null,
            row.cooldownUntil > row.now ? flag(t("flag.cooldown", { time: about(row.cooldownUntil - row.now) }), "bad", row.cooldownBy) : null,
            row.nextStartAt > row.now && row.waiting ? flag(t("flag.throttled", { time: about(row.nextStartAt - row.now) }), "info") : null,
            row.unserved ? flag(t("flag.noworker"), "bad") : null,
            openOf(row).length ? flag(t("flag.breakers", { n: openOf(row).length }), "bad", t("flag.breakers.long", { names: openOf(row).join(", ") })) : null,
            changedFlag(row.overrides),
          ),
      },
      {
        name: "model.slots",
        class: "num",
        sign: row => `${row.running}/${row.limit ?? row.slots}`,
        draw: row => {
          const limit = row.limit ?? row.slots;
          return limit ? gauge(t("queue.of", { n: number(row.running), limit: number(limit) }), row.running / limit) : number(row.running);
        },
      },
      { name: "model.waiting", class: "num", sign: row => number(row.waiting) },
      {
        name: "model.drain",
        class: "num",
        sign: row => (row.waiting ? `${row.drainMs} ${row.growth} ${blockedText(row)}` : "–"),
        draw: row => {
          if (!row.waiting) return "–";
          const reason = blockedText(row);
          const trend = reason ? h("span", { class: "sub warn" }, reason) : row.done && row.growth <= 0 ? h("span", { class: "sub" }, trendText(row.growth)) : null;
          return [h("span", { title: t("drain.long") }, drainText(row.drainMs, row.growth)), trend];
        },
      },
      {
        name: "model.rate",
        class: "num",
        sign: row => JSON.stringify(row.done),
        draw: row =>
          row.done
            ? [
                h("span", {}, t("model.rate.tasks", { n: number(row.finished) })),
                row.done.outputTokensLastMinute ? h("span", { class: "sub" }, t("model.rate.tokens", { n: number(row.done.outputTokensLastMinute / 60, row.done.outputTokensLastMinute < 600 ? 1 : 0) })) : null,
              ]
            : "–",
      },
      {
        name: "model.pace",
        class: "num",
        sign: row => `${row.requestsPerMinute}/${row.tokensPerMinute}/${row.windows}`,
        draw: row =>
          row.requestsPerMinute || row.tokensPerMinute || row.windows
            ? [
                row.windows ? h("span", {}, t("model.pace.windows", { windows: row.windows })) : null,
                row.requestsPerMinute ? h("span", {}, t("model.pace.rpm", { n: number(row.requestsPerMinute) })) : null,
                row.tokensPerMinute ? h("span", { class: "sub" }, t("model.pace.tpm", { n: number(row.tokensPerMinute) })) : null,
              ]
            : t("unlimited"),
      },
      {
        name: "model.run",
        class: "num",
        sign: row => JSON.stringify([row.meanRunMs, row.outputLimits]),
        draw: row => [h("span", {}, duration(row.meanRunMs)), ...limitLines(row.outputLimits)],
      },
      { name: "model.workers", class: "num", sign: row => (row.workers ? t("model.workers.n", { n: row.workers, slots: t("slots.n", { n: row.slots }) }) : "0") },
      { name: "", class: "end", sign: row => String(row.paused), draw: row => limitButtons("model", row.model, row.paused) },
    ],
    "models.title",
  );

const TONES = { open: "bad", half_open: "warn", closed: "good" };

/** A button of an upstream's row; without use while its breaker is as it says. */
function breakerButton(row, breaker, newest) {
  const idle = breaker === "auto" ? !row.forced && row.breaker === "closed" && !isCoolingDown(row) : row.forced && row.breaker === breaker;
  const label = t(`action.breaker.${breaker}.label`, { name: breakerName(row.model, row.upstream) });
  return rowButton(`breaker-${breaker}`, t(`action.breaker.${breaker}`), () => forceBreaker(newest(), breaker), { label, danger: breaker === "open", disabled: idle });
}

const isCoolingDown = ({ cooldownUntil, now }) => cooldownUntil > now;

const upstreamTable = () =>
  new LiveTable(
    [
      {
        name: "upstream.name",
        sign: row => row.upstream,
        draw: row => h("div", { class: "who" }, row.upstream ? h("b", {}, row.upstream) : h("span", { title: t("upstream.unnamed.long") }, t("upstream.unnamed"))),
      },
      { name: "upstream.model", sign: row => row.model, draw: row => h("a", { class: "who", href: `#/tasks?model=${encodeURIComponent(row.model)}` }, row.model) },
      {
        name: "upstream.breaker",
        sign: row => JSON.stringify([row.breaker, row.forced, row.until > row.now ? seconds(row.until - row.now) : 0, isCoolingDown(row) ? seconds(row.cooldownUntil - row.now) : 0]),
        draw: row =>
          h(
            "div",
            { class: "who" },
            flag(t(`upstream.${row.breaker}`), TONES[row.breaker], t(`upstream.${row.breaker}.long`)),
            row.forced ? h("small", {}, t("upstream.forced")) : row.until > row.now ? h("small", {}, t("upstream.until", { time: about(row.until - row.now) })) : null,
            isCoolingDown(row) ? flag(t("upstream.cooldown", { time: about(row.cooldownUntil - row.now) }), "warn", t("upstream.cooldown.long", { worker: row.cooldownBy })) : null,
          ),
      },
      { name: "upstream.since", class: "num", sign: row => (row.since === null ? "–" : t("ago", { time: about(Math.max(row.now - row.since, 0)) })) },
      { name: "upstream.openings", class: "num", sign: row => (row.openings ? number(row.openings) : "–") },
      { name: "upstream.reason", sign: row => row.reason ?? "–" },
      { name: "upstream.probes", class: "num", sign: row => (row.probes ? number(row.probes) : "–"), draw: row => h("span", { title: t("upstream.probes.long") }, row.probes ? number(row.probes) : "–") },
      { name: "upstream.workers", class: "num", sign: row => number(row.workers) },
      {
        name: "",
        class: "end",
        sign: row => JSON.stringify([row.breaker, row.forced, isCoolingDown(row)]),
        draw: (row, newest) => h("div", {}, ["open", "closed", "auto"].map(breaker => breakerButton(row, breaker, newest))),
      },
    ],
    "upstreams.title",
  );

/** For how long a task of a worker has given no sign, once that is long; "" else. */
const taskSilence = ({ taskSilentMs: ms }) => (ms >= SILENT_TASK_MS ? t("flag.task", { time: about(ms) }) : "");

const workerTable = () =>
  new LiveTable(
    [
      {
        name: "worker.name",
        sign: row => JSON.stringify([row.name, row.workerId, row.draining, row.running === 0, row.silent, taskSilence(row), row.unhealthy, row.upstream]),
        draw: row =>
          h(
            "div",
            { class: "who" },
            h("b", {}, row.name || row.workerId),
            row.draining ? flag(t(row.running ? "flag.draining" : "flag.drained")) : null,
            row.silent ? flag(t("flag.silent"), "bad") : null,
            taskSilence(row) ? flag(taskSilence(row), "bad") : null,
            row.unhealthy ? flag(t("flag.unhealthy"), "bad") : null,
            row.unhealthy ? h("small", {}, row.unhealthy) : null,
            row.name ? h("small", { class: "id" }, row.workerId) : null,
            row.upstream ? h("small", {}, t("worker.upstream", { name: row.upstream })) : null,
          ),
      },
      {
        name: "worker.models",
        sign: row => JSON.stringify([row.models, row.moreModels, row.taskTypes]),
        draw: row => {
          const more = row.moreModels ? `, … +${number(row.moreModels)}` : "";
          const names = row.models.includes("*") ? t("worker.any") : row.models.join(", ") + more;
          return h("span", { class: "who", title: names }, names.length > 120 ? `${names.slice(0, 119)}…` : names, row.taskTypes ? h("small", {}, row.taskTypes.join(", ")) : null);
        },
      },
      {
        name: "worker.slots",
        class: "num",
        sign: row => `${row.running}/${row.slots}`,
        draw: row => {
          const text = t("queue.of", { n: number(row.running), limit: number(row.slots) });
          const shown = row.running ? h("a", { href: `#/tasks?status=executing&worker=${row.workerId}`, "aria-label": `${t("worker.tasks")}: ${text}` }, text) : text;
          return h("span", { class: "gauge" }, shown, meter(row.running / row.slots));
        },
      },
      { name: "worker.heard", class: "num", sign: row => (row.heartbeatAgeMs < 2000 ? t("now") : t("ago", { time: about(row.heartbeatAgeMs) })) },
      { name: "worker.version", class: "num", sign: row => `v${row.version}` },
      {
        name: "worker.replica",
        sign: row => `${row.replica}${row.here}`,
        draw: row => h("span", { class: "who" }, h("span", { class: "id" }, row.replica), row.here ? h("small", {}, t("worker.here")) : null),
      },
      {
        name: "",
        class: "end",
        sign: row => String(row.draining),
        draw: (row, newest) =>
          h("div", {}, rowButton("drain", t("action.drain"), () => drain(newest()), { label: t("action.drain.label", { name: row.name || row.workerId }), danger: true, disabled: row.draining })),
      },
    ],
    "workers.title",
  );

/** The tables in their order; `make` is given what to call when a row was changed. */
const TABLES = [
  { name: "users", make: userTable, empty: () => sentence("users.empty") },
  { name: "queues", make: queueTable, empty: () => sentence("queues.empty") },
  { name: "models", make: modelTable, empty: () => sentence("models.empty") },
  { name: "upstreams", hint: "upstreams.hint", make: upstreamTable, empty: () => null },
  { name: "workers", make: workerTable, empty: firstWorker },
];
