// The tasks: found by a part of their id or user, by their attributes, by time.

import { call } from "../../common/api.js";
import { h } from "../../common/dom.js";
import { dateTime, duration, fieldTime, when } from "../../common/format.js";
import { t } from "../../common/i18n.js";
import { saveFile, toast } from "../../common/page.js";
import { cancel, cancelFound } from "../actions.js";
import { anyOf, link, listed, queryOf, statusChip } from "./cells.js";

const STATUSES = ["queued", "executing", "completed", "failed", "cancelled"];
const TASK_ID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;
const MAX_SAVED = 2000;
const FILTERS = ["user", "status", "queue", "model", "worker", "text", "code", "from", "to"];
const SAVED = ["taskId", "status", "user", "key", "model", "queue", "type", "code", "category", "enqueuedAt", "startedAt", "firstOutputAt", "endedAt", "attempt"];

/** How long a task waited before its (last) grant, and how long that has run, ms; null where there is none. */
export function spans(task) {
  const now = task.endedAt ?? task.now;
  return { waited: (task.startedAt ?? now) - task.enqueuedAt, ran: task.startedAt === null ? null : now - task.startedAt };
}

const search = query => queryOf(query, FILTERS);

/** Whether the gateway can cancel all tasks of a search: those of a user, queue, model or worker that have not ended. */
const cancellable = query =>
  ["user", "queue", "model", "worker"].some(name => query.get(name)) && ["queued", "executing", null].includes(query.get("status")) && !["text", "code", "from", "to"].some(name => query.get(name));

/** A value of a CSV file, always quoted. What a table program would take for a formula, also behind another separator than ours,
 * gets an apostrophe. */
function csv(value) {
  if (value === null || value === undefined) return "";
  const text = String(value).replace(/(^|[;,|\t\r\n])(?=\s*[=+\-@])/g, "$1'");
  return `"${text.replaceAll('"', '""')}"`;
}

/** Save the tasks that a search finds as a CSV file, newest first. */
async function save(query) {
  const rows = [];
  for (let after = ""; after !== null && rows.length < MAX_SAVED; ) {
    const { tasks: found, next } = await call(`/api/admin/tasks?${queryOf(query, FILTERS, { limit: 200, after })}`);
    rows.push(...found);
    after = next;
  }
  const time = (name, value) => (name.endsWith("At") && value ? new Date(value).toISOString() : value);
  const lines = [SAVED.join(","), ...rows.map(row => SAVED.map(name => csv(time(name, row[name]))).join(","))];
  saveFile(new Blob([lines.join("\r\n"), "\r\n"], { type: "text/csv" }), "tasks.csv");
  toast(t("done.save", { n: rows.length }), "good");
}

const timeFilter = name => ({ name, label: `tasks.${name}`, type: "datetime-local", show: fieldTime, parse: text => text && String(new Date(text).getTime()) });

export const tasks = listed({
  name: "tasks",
  path: query => `/api/admin/tasks?${search(query)}`,
  rows: answer => answer.tasks.map(row => ({ ...row, now: answer.now })),
  key: row => row.taskId,
  chips: ["user"],
  filters: [
    { name: "text", label: "tasks.text", open: text => (TASK_ID.test(text) ? `#/tasks/${text.toLowerCase()}` : null) },
    { name: "status", options: anyOf("status", STATUSES) },
    { name: "queue", suggest: ({ names }) => names().queues },
    { name: "model", suggest: ({ names }) => names().models },
    { name: "worker", suggest: ({ names }) => names().workers },
    { name: "code", label: "col.error" },
    timeFilter("from"),
    timeFilter("to"),
  ],
  buttons: [{ name: "save-tasks", label: "action.save", run: save }, cancelFound(search, cancellable)],
  actions: [cancel],
  columns: () => [
    { name: "task.id", value: row => h("a", { class: "id", href: `#/tasks/${row.taskId}` }, row.taskId) },
    { name: "col.status", value: row => statusChip(row.status) },
    { name: "col.user", sort: row => row.user, value: row => link("tasks", "user", row.user) },
    { name: "col.model", sort: row => row.model, value: row => h("span", { class: "who" }, row.model) },
    { name: "col.queue", value: row => row.queue },
    { name: "col.submitted", num: true, sort: row => row.enqueuedAt, value: row => h("span", { title: dateTime(row.enqueuedAt) }, when(row.enqueuedAt, row.now)) },
    { name: "col.waited", num: true, sort: row => spans(row).waited, value: row => duration(spans(row).waited) },
    { name: "col.ran", num: true, sort: row => spans(row).ran, value: row => duration(spans(row).ran) },
    { name: "col.error", value: row => (row.code && row.status === "failed" ? h("span", { class: "id why", title: row.category ? t("codes.category", { category: row.category }) : null }, row.code) : "") },
  ],
});
