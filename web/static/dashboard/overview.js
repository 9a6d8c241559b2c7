// The overview: figures, plots, users, queues, models, upstreams, workers.

import { call } from "../common/api.js";
import { h, later, replace, setText } from "../common/dom.js";
import { duration, number, percent, wholeUnits } from "../common/format.js";
import { t } from "../common/i18n.js";
import { copyButton } from "../common/page.js";
import { gauge, meter } from "../common/table.js";
import { breakerActions, cancelWaiting, drain, isCoolingDown, limitActions, settingName, throttle } from "./actions.js";
import { PLOTS, Plot } from "./charts.js";
import { count, flag, link } from "./resources/cells.js";
import { Section, panel } from "./view.js";

const HISTORY_MS = 10_000;
const METRICS_DOC = "https://github.com/fairlane/fairlane/blob/main/docs/metrics.md";
const MAX_USERS = 10;
const MAX_CODES = 6;
const MAX_REASONS = 2;
const MAX_UNCOUNTED = 8; // rows of a section
const SILENT_TASK_MS = 60_000; // as `fairlane status` has it
const MANY = 0.02;
const NOTHING = { acceptedLastMinute: 0, endedLastMinute: 0, cancelledLastMinute: 0, outputTokensLastMinute: 0 };

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
  constructor(context) {
    this._history = null;
    this._picture = null;
    this._users = null;
    this._figures = new Figures();
    this._plots = PLOTS.map(spec => new Plot(spec));
    this._codes = h("div", { class: "codes-lists" });
    this._sections = SECTIONS.map(spec => new Section(spec, { context, after: () => this._readUsers() }));
    this.element = h(
      "div",
      { class: "grid" },
      this._figures.element,
      h("p", { class: "muted small" }, t("plot.about"), " ", h("a", { href: METRICS_DOC, rel: "noopener" }, t("plot.docs"))),
      h("div", { class: "grid plots" }, this._plots.map(({ element }) => element), panel("codes", t("codes.title"), {}, this._codes)),
      this._sections.map(({ element }) => element),
    );
    this._stopped = false;
    this._calledOff = {}; // by path
    this._readHistory();
    this._readUsers();
  }

  close() {
    this._stopped = true;
    for (const callOff of Object.values(this._calledOff)) callOff();
    for (const plot of this._plots) plot.close();
  }

  /** Show a picture of the feed. */
  show(picture) {
    this._picture = picture;
    const now = picture.asOf ?? picture.now;
    const done = this._history?.models ?? {};
    const none = done.other ? null : NOTHING; // with very many models some are counted together
    const models = picture.models.map(row => withDrain({ ...row, now, done: this._history && (done[row.model] ?? none) }));
    this._figures.show(picture, this._history, models);
    for (const [index, { name, rowsOf, count: countOf, optional }] of SECTIONS.entries()) {
      const rows = rowsOf({ picture, models, users: this._users });
      const unknown = rows === null || (picture.asOf === null && rows.length === 0 && name !== "workers");
      this._sections[index].update(unknown ? null : rows, countOf?.(this._users) ?? (rows?.length > MAX_UNCOUNTED ? number(rows.length) : ""));
      this._sections[index].element.hidden = Boolean(optional && !rows.length);
    }
  }

  /** Read a path now and periodically; `take` gets each answer. */
  async _read(path, take) {
    this._calledOff[path]?.();
    try {
      const answer = await call(path);
      if (this._stopped) return;
      take(answer);
      if (this._picture) this.show(this._picture);
    } catch {
      // the banner says what is wrong; what is shown stays
    }
    if (!this._stopped) this._calledOff[path] = later(() => this._read(path, take), HISTORY_MS);
  }

  _readHistory() {
    this._read("/api/admin/timeseries", history => {
      this._history = history;
      for (const plot of this._plots) plot.show(history);
      const { failures, rejections } = history.total;
      replace(this._codes, codeList("codes.failures", failures, "--bad", true), codeList("codes.rejections", rejections, "--warn", false));
    });
  }

  _readUsers() {
    this._read(`/api/admin/users?limit=${MAX_USERS}`, users => (this._users = users));
  }
}

function codeList(key, entries, tone, linked) {
  const most = entries[0]?.count ?? 1;
  const items = entries.slice(0, MAX_CODES).map(({ code, category, count: n }) => {
    const attributes = { class: "name", title: category && category !== code ? t("codes.category", { category }) : null };
    const name = linked && code !== "other" ? h("a", { ...attributes, href: `#/tasks?${new URLSearchParams({ status: "failed", code })}` }, code) : h("span", attributes, code);
    return h("li", {}, name, h("span", { class: "num" }, number(n)), meter(n / most, { tone: `var(${tone})` }));
  });
  return h("div", {}, h("h3", { class: "codes-head" }, t(key)), items.length ? h("ul", { class: "codes" }, items) : h("p", { class: "muted small" }, t("codes.none")));
}

// ---- the figures at the top ----------

class Figures {
  constructor() {
    this._cells = {};
    this.element = h("dl", { class: "panel figures" });
    for (const name of ["waiting", "drain", "running", "rate", "total", "failed", "rejected", "workers"]) {
      const cell = (this._cells[name] = { value: h("dd", { dataset: { figure: name } }), more: h("dd", { class: "more" }) });
      this.element.append(h("div", {}, h("dt", {}, t(`figure.${name}`)), cell.value, cell.more));
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
    const named = (key, rows) => (rows.length ? t(key, { names: rows.map(row => row.replica).join(", ") }) : "");
    const differ = name => new Set(replicas.map(row => row[name]).filter(Boolean)).size > 1;
    const troubles = [
      named("figure.workers.overruled", replicas.filter(row => row.configuration && !row.configuration.effective)),
      named("figure.workers.reload", replicas.filter(row => row.reloadError)),
      differ("keysHash") ? t("figure.workers.keys") : "",
      differ("routesHash") ? t("figure.workers.routes") : "",
    ].join("");
    const about = picture.asOf === null ? "" : t("figure.workers.more", { n: replicas.length }) + troubles;
    this._set("workers", number(workers.length), about, workers.length && !troubles ? "" : "warn");
    if (history === null) return;
    const { total } = history;
    const last = name => history[name].slice(-60_000 / history.bucketMs).reduce((sum, value) => sum + value, 0);
    const ended = total.completed + total.failed + total.cancelled;
    const asked = total.accepted + total.rejected;
    const share = (name, n, of) => (of ? t(`figure.${name}.more`, { share: percent(n / of, 1) }) : "");
    this._set("rate", number(last("completed") + last("failed")), t("figure.rate.more", { rate: number(last("accepted")) }));
    this._set("total", duration(total.totalMs.p50), total.totalMs.p95 === null ? "" : t("figure.total.more", { time: duration(total.totalMs.p95) }));
    this._set("failed", number(total.failed), share("failed", total.failed, ended), total.failed > MANY * ended ? "bad" : "");
    this._set("rejected", number(total.rejected), share("rejected", total.rejected, asked), total.rejected > MANY * asked ? "warn" : "");
  }

  _set(name, value, more, tone = "") {
    const cell = this._cells[name];
    setText(cell.value, value);
    setText(cell.more, more);
    cell.value.className = tone;
  }
}

// ---- tables ----------

const changedFlag = overrides => {
  const names = Object.keys(overrides ?? {}).filter(name => name !== "paused");
  return names.length ? flag(t("flag.changed"), "info", t("flag.changed.long", { names: names.map(settingName).join(", ") })) : null;
};

const who = (...parts) => h("div", { class: "who" }, parts);
const sub = (text, more = "", title = null) => h("span", { class: `sub ${more}`, title }, text);
const seconds = ms => Math.ceil(ms / 1000) * 1000;

/** A duration in whole seconds. */
const about = ms => wholeUnits(seconds(ms));

/** How long waiting tasks take; while their number grows, by how much. */
const drainText = (ms, growth) => (growth > 0 ? t("drain.grows", { n: number(growth) }) : ms === null ? t("drain.never") : duration(seconds(ms)));
const trendText = growth => (growth > 0 ? "" : t(growth < 0 ? "drain.shrinks" : "drain.steady", { n: number(-growth) }));

/** Why tasks of a model's row cannot start; "" where all can. */
const blockedText = ({ blocked }) => [...new Set(Object.entries(blocked).map(([queue, reason]) => t(`blocked.${reason}`, { queue })))].join("; ");

/** A number and its limit, with a bar that changes its colour towards the limit if that is to be avoided (`tones`). */
function ofLimit(n, limit, tones = false) {
  if (!limit) return number(n);
  const share = n / limit;
  return gauge(t("of", { n: number(n), limit: number(limit) }), share, { tone: !tones || share < 0.6 ? null : share < 0.9 ? "var(--warn)" : "var(--bad)" });
}

/** The limit of a model that follows the time to the first output, as it is now, and the largest one. */
const adaptedLimit = found =>
  found && sub(t("model.auto", { n: number(found.limit), max: number(found.max) }), "", t("model.auto.long", { target: duration(found.targetMs), min: number(found.min), n: found.decreases }));

const shareColumn = name => ({ name, num: true, value: row => (row.share === null ? "–" : h("span", { title: t(`${name}.long`) }, gauge(percent(row.share, 1), row.share))) });

/** How long a model may be silent, as it holds now, and why. */
const limitLines = limits =>
  ["firstOutput", "silence"]
    .filter(name => limits?.[`${name}Ms`])
    .map(name => sub(t(`limit.${name}`, { time: duration(limits[`${name}Ms`]) }), limits.reason === "long_queue" ? "warn" : "", `${t(`limit.${name}.long`)} ${t(`limit.reason.${limits.reason}`, { wait: duration(limits.waitMs) })}`));

/** The upstreams of a model's row whose breakers are open, by name. */
const openOf = ({ upstreams }) => (upstreams ?? []).filter(one => one.breaker === "open").map(one => one.upstream || t("upstream.unnamed"));

function modelName(row) {
  const open = openOf(row);
  return who(
    h("b", {}, link("tasks", "model", row.model)),
    row.paused ? flag(t("flag.paused")) : null,
    isCoolingDown(row) ? flag(t("cooldown", { time: about(row.cooldownUntil - row.now) }), "bad", row.cooldownBy) : null,
    row.nextStartAt > row.now && row.waiting ? flag(t("flag.throttled", { time: about(row.nextStartAt - row.now) }), "info") : null,
    row.unserved ? flag(t("blocked.no_worker"), "bad") : null,
    open.length ? flag(t("flag.breakers", { n: open.length }), "bad", t("flag.breakers.long", { names: open.join(", ") })) : null,
    changedFlag(row.overrides),
  );
}

function drainCell(row) {
  if (!row.waiting) return "–";
  const reason = blockedText(row);
  return [h("span", { title: t("drain.long") }, drainText(row.drainMs, row.growth)), reason ? sub(reason, "warn") : row.done && row.growth <= 0 ? sub(trendText(row.growth)) : null];
}

function rateCell({ done, finished }) {
  if (!done) return "–";
  const tokens = done.outputTokensLastMinute;
  return [t("model.rate.tasks", { n: number(finished) }), tokens ? sub(t("model.rate.tokens", { n: number(tokens / 60, tokens < 600 ? 1 : 0) })) : null];
}

function rateLimits({ requestsPerMinute, tokensPerMinute, windows }) {
  const lines = [windows && t("model.pace.windows", { windows }), requestsPerMinute && t("model.pace.rpm", { n: number(requestsPerMinute) }), tokensPerMinute && t("model.pace.tpm", { n: number(tokensPerMinute) })].filter(Boolean);
  return lines.length ? lines.map((line, index) => (index ? sub(line) : h("span", {}, line))) : t("unlimited");
}

const TONES = { open: "bad", half_open: "warn", closed: "good" };

const breakerCell = row =>
  who(
    flag(t(`upstream.${row.breaker}`), TONES[row.breaker], t(`upstream.${row.breaker}.long`)),
    row.forced ? h("small", {}, t("upstream.forced")) : row.until > row.now ? h("small", {}, t("upstream.until", { time: about(row.until - row.now) })) : null,
    isCoolingDown(row) ? flag(t("cooldown", { time: about(row.cooldownUntil - row.now) }), "warn", t("upstream.cooldown.long", { worker: row.cooldownBy })) : null,
  );

const workerName = row =>
  who(
    h("b", {}, row.name || row.workerId),
    row.draining ? flag(t(row.running ? "flag.draining" : "flag.drained")) : null,
    row.silent ? flag(t("flag.silent"), "bad") : null,
    row.taskSilentMs >= SILENT_TASK_MS ? flag(t("flag.task", { time: about(row.taskSilentMs) }), "bad") : null,
    row.unhealthy ? [flag(t("flag.unhealthy"), "bad"), h("small", {}, row.unhealthy)] : null,
    row.name ? h("small", { class: "id" }, row.workerId) : null,
    row.upstream ? h("small", {}, t("worker.upstream", { name: row.upstream })) : null,
  );

function workerModels(row) {
  const more = row.moreModels ? `, … +${number(row.moreModels)}` : "";
  const names = row.models.includes("*") ? t("worker.any") : row.models.join(", ") + more;
  return h("span", { class: "who", title: names }, names.length > 120 ? `${names.slice(0, 119)}…` : names, row.taskTypes ? h("small", {}, row.taskTypes.join(", ")) : null);
}

function workerSlots(row) {
  const text = t("of", { n: number(row.running), limit: number(row.slots) });
  const shown = row.running ? h("a", { href: `#/tasks?status=executing&worker=${row.workerId}`, "aria-label": `${t("worker.tasks")}: ${text}` }, text) : text;
  return h("span", { class: "gauge" }, shown, meter(row.running / row.slots));
}

/** What to do while no worker is connected. */
function firstWorker() {
  const command = `fairlane worker simulate --model demo --gateway ${location.origin}`;
  return [h("p", {}, t("workers.empty")), h("p", {}, t("workers.first")), h("p", {}, h("code", { class: "command" }, command), " ", copyButton(() => command))];
}

/** Sections in their order. `rowsOf({ picture, models, users })`: their rows, null if not known; `count(users)`: behind the heading. */
const SECTIONS = [
  {
    name: "users",
    hint: false,
    key: row => row.user,
    rowsOf: ({ users }) => users?.users ?? null,
    count: users => (users && (users.number > users.users.length || !users.complete) ? t("users.of", { n: users.number }) : ""),
    actions: [throttle, cancelWaiting],
    columns: [
      { name: "col.user", value: row => h("b", {}, link("tasks", "user", row.user)) },
      { name: "col.waiting", num: true, value: row => h("a", { href: `#/tasks?${new URLSearchParams({ status: "queued", user: row.user })}` }, number(row.waiting)) },
      count("col.running", row => row.running),
      count("user.tokens", row => row.tokens),
      shareColumn("user.share"),
      { name: "user.model", value: row => row.model ?? "–" },
    ],
  },
  {
    name: "queues",
    hint: false,
    key: row => row.queue,
    rowsOf: ({ picture }) => picture.queues,
    actions: limitActions("queue"),
    columns: [
      {
        name: "col.queue",
        value: row =>
          who(
            h("b", {}, link("tasks", "queue", row.queue)),
            row.paused ? flag(t("flag.paused")) : row.blocked ? flag(t(`blocked.${row.blocked}`, { queue: row.queue }), "bad") : null,
            changedFlag(row.overrides),
            row.admission === "adaptive" ? flag(t("queue.adaptive"), "info") : null,
          ),
      },
      { name: "col.waiting", num: true, value: row => ofLimit(row.waiting, row.maxLength, true) },
      { name: "queue.oldest", num: true, value: row => (row.waiting && row.oldestWaitMs !== null ? duration(row.oldestWaitMs) : "–") },
      { name: "col.running", num: true, value: row => (row.maxRunning ? t("of", { n: number(row.running), limit: number(row.maxRunning) }) : number(row.running)) },
      { name: "col.weight", num: true, value: row => number(row.weight, 2) },
      shareColumn("queue.share"),
      { name: "queue.wait", num: true, value: row => (row.maxWaitMs ? duration(row.maxWaitMs) : t("unlimited")) },
    ],
  },
  {
    name: "models",
    hint: false,
    key: row => row.model,
    rowsOf: ({ models }) => models,
    actions: limitActions("model"),
    columns: [
      { name: "col.model", value: modelName },
      { name: "col.slots", num: true, value: row => [ofLimit(row.running, row.limit ?? row.slots), adaptedLimit(row.adaptive)] },
      count("col.waiting", row => row.waiting),
      { name: "figure.drain", num: true, value: drainCell },
      { name: "model.rate", num: true, value: rateCell },
      { name: "model.pace", num: true, value: rateLimits },
      { name: "col.meanRun", num: true, value: row => [h("span", {}, duration(row.meanRunMs)), limitLines(row.outputLimits)] },
      { name: "col.workers", num: true, value: row => (row.workers ? t("model.workers.n", { n: row.workers, slots: t("slots.n", { n: row.slots }) }) : "0") },
    ],
  },
  {
    name: "upstreams",
    optional: true,
    empty: "",
    key: row => `${row.model}\n${row.upstream}`,
    rowsOf: ({ models }) => models.flatMap(({ model, now, upstreams }) => (upstreams ?? []).map(row => ({ ...row, model, now }))),
    actions: breakerActions,
    columns: [
      { name: "col.upstream", value: row => who(row.upstream ? h("b", {}, row.upstream) : h("span", { title: t("upstream.unnamed.long") }, t("upstream.unnamed"))) },
      { name: "col.model", value: row => link("tasks", "model", row.model) },
      { name: "setting.breaker", value: breakerCell },
      { name: "col.since", num: true, value: row => (row.since === null ? "–" : t("ago", { time: about(Math.max(row.now - row.since, 0)) })) },
      { name: "upstream.openings", num: true, value: row => (row.openings ? number(row.openings) : "–") },
      { name: "upstream.reason", value: row => row.reason ?? "–" },
      { name: "upstream.probes", num: true, value: row => h("span", { title: t("upstream.probes.long") }, row.probes ? number(row.probes) : "–") },
      count("col.workers", row => row.workers),
    ],
  },
  {
    name: "workers",
    hint: false,
    get empty() {
      return firstWorker();
    },
    key: row => row.workerId,
    rowsOf: ({ picture: { gateway, workers } }) => workers.map(row => ({ ...row, here: row.replica === gateway.replica, silent: row.version >= 2 && row.heartbeatAgeMs > 2 * gateway.heartbeatMs })),
    actions: [drain],
    columns: [
      { name: "col.worker", value: workerName },
      { name: "col.models", value: workerModels },
      { name: "col.slots", num: true, value: workerSlots },
      { name: "worker.heard", num: true, value: row => (row.heartbeatAgeMs < 2000 ? t("now") : t("ago", { time: about(row.heartbeatAgeMs) })) },
      { name: "worker.version", num: true, value: row => `v${row.version}` },
      { name: "worker.replica", value: row => h("span", { class: "who" }, h("span", { class: "id" }, row.replica), row.here ? h("small", {}, t("worker.here")) : null) },
    ],
  },
];
