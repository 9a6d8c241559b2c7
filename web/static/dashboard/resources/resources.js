// The kinds of records on the operators' pages, except keys: columns, filters and actions as data for ResourceView.

import { call } from "../../common/api.js";
import { h } from "../../common/dom.js";
import { credits, dateTime, duration, number } from "../../common/format.js";
import { t } from "../../common/i18n.js";
import { saveFile } from "../../common/page.js";
import { gauge } from "../../common/table.js";
import { settingName, valueText } from "../actions.js";
import { actor, anyOf, at, chip, count, listed, owner, queryOf, text } from "./cells.js";

const id = row => row.id;

// ---- batches ----------

/** What is wrong with a batch, and where; or what it waits for. */
function batchProblem({ error, errorLine, waitsFor = [] }) {
  if (error) return errorLine ? t("batches.line", { line: errorLine, error }) : error;
  return waitsFor.map(({ code, models }) => t("batches.waits", { what: models.length ? `${code} (${models.join(", ")})` : code })).join(" ");
}

function batchProgress({ counts: { total, completed, failed }, linesWaiting, linesRunning }) {
  if (!total) return "–";
  const done = gauge(t("batches.counts", { done: number(completed + failed), total: number(total), failed: number(failed) }), (completed + failed) / total, { tone: failed ? "var(--warn)" : null });
  return linesWaiting || linesRunning ? h("div", {}, done, h("span", { class: "sub" }, t("batches.lines", { waiting: number(linesWaiting), running: number(linesRunning) }))) : done;
}

export const batches = listed({
  name: "batches",
  path: query => `/api/admin/batches?${queryOf(query, ["status", "user", "key"])}`,
  rows: answer => answer.batches,
  key: id,
  chips: ["user", "key"],
  filters: [{ name: "status", label: "col.status", options: anyOf("batch", ["unended", "validating", "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"]) }],
  columns: () => [
    { name: "col.id", wide: true, value: row => h("div", {}, h("span", { class: "id" }, row.id), h("span", { class: "sub" }, row.endpoint)) },
    owner("batches"),
    text("col.model", row => row.model),
    chip("batch", row => row.status, batchProblem),
    { name: "col.progress", value: batchProgress },
    at("col.created", row => row.createdAt),
    at("col.endedOrExpires", row => row.endedAt ?? row.expiresAt),
  ],
  actions: [
    {
      name: "cancel-batch",
      label: "action.cancel.batch",
      danger: true,
      when: row => row.endedAt === null && row.status !== "cancelling",
      title: row => t("batches.cancel", { id: row.id }),
      text: row => t("batches.cancel.text", { user: row.user }),
      send: row => [`/api/admin/tasks/cancel?batch=${row.id}`, { body: {} }],
      done: (_, row) => t("batches.cancelled", { id: row.id }),
    },
  ],
});

// ---- webhooks ----------

const webhookStatus = row => (!row.enabled ? "off" : row.failing ? "failing" : "on");

function webhookProblem(row) {
  return { off: row.disabledReason, failing: row.failing && t("webhooks.failing", { n: number(row.failing.attempts), at: dateTime(row.failing.since), error: row.failing.error }) }[webhookStatus(row)];
}

export const webhooks = listed({
  name: "webhooks",
  path: () => "/api/admin/webhooks",
  rows: answer => answer.webhooks,
  key: id,
  columns: () => [
    { name: "col.url", wide: true, value: row => h("div", {}, row.url, h("span", { class: "sub id" }, row.id)) },
    text("col.user", row => (row.user === "*" ? t("col.everyUser") : row.user)),
    text("col.events", row => row.events.join(", ")),
    chip("webhook", webhookStatus, webhookProblem),
    count("col.owed", row => row.waiting),
    at("col.delivered", row => row.deliveredAt),
  ],
  actions: [
    {
      name: "webhook-off",
      label: "webhooks.off",
      danger: true,
      when: row => row.enabled,
      title: row => t("webhooks.ask.off", { url: row.url }),
      text: () => t("webhooks.ask.off.text"),
      send: row => [`/api/admin/webhooks/${row.id}`, { method: "PATCH", body: { enabled: false } }],
      done: (_, row) => t("webhooks.done.off", { url: row.url }),
    },
  ],
});

// ---- usage ----------

const RANGES = { "7d": 7, "30d": 30, "90d": 90, "365d": 365 };
const BY = ["model", "route", "key", "user", "tier", "code", "day"];
const NAMED = ["model", "route", "key", "user", "tier"];
const DAY_MS = 86_400_000;
const byOf = query => (BY.includes(query.get("by")) ? query.get("by") : "model");

const usagePath = (query, more) =>
  `/api/admin/usage?${queryOf(query, NAMED, { by: byOf(query), from: String(Date.now() - ((RANGES[query.get("range")] ?? RANGES["30d"]) - 1) * DAY_MS), ...more })}`;

const saveUsage = async query => saveFile(await call(usagePath(query, { format: "csv", limit: "10000" }), { timeoutMs: 600_000, read: response => response.blob() }), "usage.csv");

/** The name of a row; a link to what else is known of it. */
function usageName(by, row, query) {
  if (!row[by]) return t(by === "code" ? "usage.completed" : "usage.none");
  if (!NAMED.includes(by)) return row[by];
  const more = queryOf(query, ["range", ...NAMED], { by: by === "model" ? "user" : "model" });
  more.set(by, row[by]);
  return h("a", { class: "who", href: `#/usage?${more}` }, row[by]);
}

const mean = (name, value) => ({ name, num: true, value: row => duration(value(row) / row.tasks), sort: row => value(row) / row.tasks });

export const usage = listed({
  name: "usage",
  againMs: 30_000,
  path: query => usagePath(query, { limit: "200" }),
  rows: (answer, query) => (byOf(query) === "day" ? [...answer.rows].reverse() : answer.rows),
  key: row => JSON.stringify(BY.map(name => row[name])),
  chips: NAMED,
  filters: [
    { name: "range", options: Object.keys(RANGES).map(name => [name === "30d" ? "" : name, () => t(`range.${name}`)]) },
    { name: "by", options: BY.map(name => [name === "model" ? "" : name, () => t("usage.by", { name: t(`col.${name}`) })]) },
  ],
  buttons: [{ name: "save-usage", label: "action.save", run: saveUsage }],
  notes: ({ total, more }) => [
    ["", t("usage.total", { tasks: number(total.tasks), failed: number(total.failed), input: number(total.inputTokens), output: number(total.outputTokens), cost: credits(total.cost) })],
    ...(more ? [["", t("usage.more")]] : []),
  ],
  columns: query => [
    { name: `col.${byOf(query)}`, value: row => usageName(byOf(query), row, query), sort: row => row[byOf(query)] },
    count("col.tasks", row => row.tasks),
    count("col.failed", row => row.failed),
    count("col.cancelled", row => row.cancelled),
    count("col.input", row => row.inputTokens),
    count("col.output", row => row.outputTokens),
    count("col.cached", row => row.cachedTokens),
    count("col.reasoning", row => row.reasoningTokens),
    mean("col.meanWait", row => row.waitedMs),
    mean("col.meanRun", row => row.ranMs),
    { name: "col.cost", num: true, value: row => credits(row.cost), sort: row => row.cost },
  ],
});

// ---- audit log and rejections ----------

const ACTIONS = ["create", "update", "delete", "rotate", "revoke", "grant", "cancel", "drain", "disable", "erase", "promote", "rollback", "end"];

function auditTarget({ target, before }) {
  const [kind, ...rest] = target.split(" ");
  const name = rest.join(" ");
  if (kind === "task") return h("a", { class: "id", href: `#/tasks/${name}` }, name);
  if (kind === "override") return h("a", { class: "id", href: "#/overrides" }, name);
  return h("span", { class: "who" }, h("small", {}, kind), h("b", {}, before?.name || name));
}

/** A value without what is not set in it. */
const setParts = value => (value && typeof value === "object" && !Array.isArray(value) ? Object.fromEntries(Object.entries(value).filter(([, part]) => part !== null)) : value);

const auditChange = ({ before, after }) =>
  h(
    "div",
    {},
    Object.keys(after)
      .filter(name => name in before || after[name]) // of what was created, the defaults say nothing
      .map(name => [settingName(name), valueText(setParts(before[name])), valueText(setParts(after[name]))])
      .filter(([, old, now]) => old !== now)
      .map(([name, old, now]) => h("div", { class: "change" }, `${name} `, h("code", {}, old), " → ", h("code", {}, now))),
  );

export const audit = {
  name: "audit",
  sections: [
    {
      name: "audit",
      path: query => `/api/admin/audit?${queryOf(query, ["target"])}`,
      rows: answer => answer.entries,
      key: id,
      chips: ["target"],
      columns: () => [
        { name: "col.at", value: row => dateTime(row.at) },
        text("col.who", row => actor(row.actor)),
        text("col.from", row => row.from),
        text("col.action", row => (ACTIONS.includes(row.action) ? t(`audit.${row.action}`) : row.action)),
        { name: "col.target", value: auditTarget },
        { name: "col.change", wide: true, value: auditChange },
      ],
    },
    {
      name: "rejections",
      againMs: 30_000,
      path: () => "/api/admin/rejections?",
      rows: answer => answer.rejections,
      key: row => `${row.minute} ${row.code} ${row.key}`,
      columns: () => [{ name: "col.at", value: row => dateTime(row.minute) }, text("col.key", row => row.key), text("col.code", row => row.code), count("col.count", row => row.count)],
    },
  ],
};

// ---- settings ----------

const SOURCES = ["changed", "replica", "file", "environment", "flag", "generated", "default"];

/** A value as it would be written in the file: no number has separators. */
function settingValue(value) {
  if (value === "(set)") return t("settings.set");
  if (Array.isArray(value)) return value.map(String).join(", ") || t("value.none");
  return typeof value === "number" ? String(value) : valueText(value);
}

const sourceOf = ({ source, where }) => (where ? `${t(`source.${source}`)}: ${where}` : t(`source.${source}`));

const drawSetting = row =>
  h(
    "div",
    { class: "setting-value" },
    settingValue(row.value),
    row.otherwise ? h("span", { class: "sub" }, t("settings.otherwise", { value: settingValue(row.otherwise.value), source: sourceOf(row.otherwise) })) : null,
    row.afterRestart ? h("span", { class: "sub warn" }, t("settings.restart", { value: settingValue(row.afterRestart.value), source: sourceOf(row.afterRestart) })) : null,
  );

/** In what the values are not the whole truth. */
function settingNotes(answer) {
  const { file, storeError, reloadError, replicas, more } = answer;
  const differing = replicas.filter(({ differs }) => differs.length).map(({ replica, differs }) => ["warn", t("settings.differs", { replica, what: differs.join(", ") })]);
  return [
    ...(storeError ? [["bad", t("settings.away", { reason: storeError })]] : []),
    ...(reloadError ? [["bad", t("settings.rejected", { at: dateTime(reloadError.at), reason: reloadError.reason })]] : []),
    ...differing,
    ...(more ? [["warn", t("settings.more")]] : []),
    ["", `${t("settings.of", answer)} · ${file ? t("settings.file", { path: file.path, modified: dateTime(file.modifiedAt), read: dateTime(answer.readAt) }) : t("settings.nofile")}`],
  ];
}

/** The settings that the filters choose: those that differ from their defaults, a source's, or those with a text. */
function chosenSettings(answer, query) {
  const [find, source] = [(query.get("text") ?? "").toLowerCase(), query.get("source") ?? ""];
  const matches = row => row.name.toLowerCase().includes(find) || settingValue(row.value).toLowerCase().includes(find);
  return answer.settings.filter(row => (source === "all" || source === row.source || (!source && (row.differs || row.otherwise))) && matches(row));
}

function changedBy(row) {
  if (!row.by) return "–";
  const [, kind, name] = /^(queue|model)s\.(.*)\.\w+$/.exec(row.name) ?? [];
  return h("a", { class: "who", href: `#/audit${kind ? `?${new URLSearchParams({ target: `${kind} ${name}` })}` : ""}` }, actor(row.by));
}

export const settings = listed({
  name: "settings",
  againMs: 30_000,
  whole: true,
  path: () => "/api/admin/settings",
  rows: chosenSettings,
  key: row => row.name,
  filters: [{ name: "text", label: "settings.find" }, { name: "source", options: [["", () => t("settings.differing")], ["all", () => t("settings.all")], ...SOURCES.map(name => [name, () => t(`source.${name}`)])] }],
  notes: settingNotes,
  columns: () => [
    { name: "col.name", value: row => h("span", { class: "setting-name" }, row.name), sort: row => row.name },
    { name: "col.value", wide: true, value: drawSetting },
    { name: "col.default", value: row => h("span", { class: "setting-value muted" }, settingValue(row.default)) },
    { name: "col.source", value: sourceOf, sort: row => SOURCES.indexOf(row.source) },
    at("col.since", row => row.since),
    { name: "col.who", value: changedBy },
  ],
});
