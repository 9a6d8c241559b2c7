// What an operator can do. Everything is asked for once more, and everything ends in the gateway's audit record.

import { call, explain } from "../common/api.js";
import { h, replace } from "../common/dom.js";
import { number } from "../common/format.js";
import { t } from "../common/i18n.js";
import { askAgain, openDialog, toast } from "../common/page.js";

const PATHS = { queue: "/api/admin/queues/", model: "/api/admin/models/" };
const CHOICES = { admission: ["fixed", "adaptive"], cost: ["tokens", "requests", "slot_seconds"] };

/** A model's name may hold slashes, which the gateway's path takes as they are; anything else is escaped. */
const pathOf = (kind, name) => PATHS[kind] + name.split("/").map(encodeURIComponent).join("/");

const patch = (kind, name, values) => call(pathOf(kind, name), { method: "PATCH", body: values });

/** Do something and tell how it went; `after` is called when it was done. The feed shows it within a second anyhow. */
async function carryOut(work, after = () => {}) {
  try {
    toast(await work(), "good");
  } catch (problem) {
    toast(explain(problem), "bad");
    return;
  }
  after();
}

/** Pause or resume a queue or model (`kind`). */
export async function pause(kind, name, paused) {
  const what = paused ? "pause" : "resume";
  const sure = await askAgain({
    title: t(`ask.${what}.${kind}`, { name }),
    text: t(`ask.${what}.${kind}.text`),
    action: t(`do.${what}`),
    danger: paused,
  });
  if (!sure) return;
  await carryOut(async () => {
    await patch(kind, name, { paused: paused || null }); // null: as configured, which is not paused
    return t(`done.${what}`, { name });
  });
}

/** Drain a worker of the state's list. */
export async function drain(worker) {
  const name = worker.name || worker.workerId;
  const sure = await askAgain({
    title: t("ask.drain", { name }),
    text: t(worker.version >= 2 ? "ask.drain.text.v2" : "ask.drain.text.v1", { n: worker.running }),
    action: t("do.drain"),
    danger: true,
  });
  if (!sure) return;
  await carryOut(async () => {
    await call(`/api/admin/workers/${worker.workerId}/drain`, { method: "POST", body: {} });
    return t("done.drain", { name });
  });
}

/** Cancel a task of a list or of its own page. */
export async function cancel(task, after) {
  const sure = await askAgain({
    title: t("ask.cancel"),
    text: t("ask.cancel.text", { id: task.taskId, user: task.user }),
    action: t("do.cancel"),
    danger: true,
  });
  if (!sure) return;
  await carryOut(async () => {
    const { status } = await call(`/api/admin/tasks/${task.taskId}/cancel`, { method: "POST", body: {} });
    return status === "cancelled" ? t("done.cancel") : t("done.cancel.late", { state: t(`state.${status}`) });
  }, after);
}

const MOST_CALLS = 20;

/** Cancel all tasks of a user that wait. */
export const cancelWaiting = ({ user, waiting }, after) =>
  cancelAll(
    new URLSearchParams({ state: "queued", user }),
    { title: t("ask.cancel.waiting", { n: waiting, user }), text: t("ask.cancel.waiting.text", { n: waiting, user }) },
    after,
  );

/** Cancel all tasks that a search finds. */
export const cancelFound = (query, after) =>
  cancelAll(query, { title: t("ask.cancel.found"), text: t("ask.cancel.found.text", { filter: [...query].map(([name, value]) => `${name} = ${value}`).join(", ") }) }, after);

async function cancelAll(query, question, after) {
  if (!(await askAgain({ ...question, action: t("do.cancel.all"), danger: true }))) return;
  await carryOut(async () => {
    let n = 0;
    for (let calls = 0; calls < MOST_CALLS; calls += 1) {
      const { cancelled, more } = await call(`/api/admin/tasks/cancel?${query}`, { method: "POST", body: {} });
      n += cancelled;
      if (!more) break;
    }
    return t("done.cancel.all", { n });
  }, after);
}

const SAVED = ["taskId", "status", "user", "key", "model", "queue", "type", "code", "error", "enqueuedAt", "startedAt", "firstOutputAt", "endedAt", "attempt"];

/** A value of a CSV file. One that a table program would take for a formula begins with an apostrophe. */
function csv(value) {
  if (value === null || value === undefined) return "";
  const text = String(value).replace(/^(?=[=+\-@\t\r])/, "'");
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** Keep the tasks that a search finds as a CSV file, at most so many, the newest first. */
export async function save(search, most) {
  await carryOut(async () => {
    const query = new URLSearchParams(search);
    query.set("limit", 200);
    const rows = [];
    while (rows.length < most) {
      const { tasks, next } = await call(`/api/admin/tasks?${query}`);
      rows.push(...tasks);
      if (!next) break;
      query.set("after", next);
    }
    const time = (name, value) => (name.endsWith("At") && value ? new Date(value).toISOString() : value);
    const lines = [SAVED.join(","), ...rows.map(row => SAVED.map(name => csv(time(name, row[name]))).join(","))];
    const url = URL.createObjectURL(new Blob([lines.join("\r\n"), "\r\n"], { type: "text/csv" }));
    h("a", { href: url, download: "tasks.csv" }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
    return t("done.save", { n: rows.length });
  });
}

/** A setting's value in words. */
export function valueText(value) {
  if (value === null || value === undefined) return t("value.none");
  if (typeof value === "boolean") return t(`value.${value}`);
  return typeof value === "number" ? number(value, 3) : String(value);
}

/** A setting's name in words; one that is not known keeps its own. */
export const settingName = name => (t(`setting.${name}`) === `setting.${name}` ? name : t(`setting.${name}`));

let asking = false;

/** Ask for other limits of a queue or model, then once more, then change them. */
export async function change(kind, name) {
  if (asking) return; // a second click before the question is there
  let now;
  asking = true;
  try {
    now = await patch(kind, name, {}); // changes nothing and says what holds
  } catch (problem) {
    toast(explain(problem), "bad");
    return;
  } finally {
    asking = false;
  }
  const wanted = await askForValues(name, now);
  if (wanted === null) return;
  const lines = Object.entries(wanted).map(([setting, value]) =>
    t("change.to", {
      name: settingName(setting),
      before: valueText(now.values[setting]),
      after: value === null ? t("change.configured") : valueText(value),
    }),
  );
  const sure = await askAgain({
    title: t("ask.change", { name }),
    text: h("span", {}, t("ask.change.text"), lines.map(line => h("strong", { class: "change-line" }, line))),
    action: t("do.change"),
  });
  if (!sure) return;
  await carryOut(async () => {
    await patch(kind, name, wanted);
    return t("done.change", { name });
  });
}

/** The values that the reader wants other than they are; null when they think better of it. */
function askForValues(name, { values, overrides }) {
  return new Promise(resolve => {
    const fields = Object.entries(values)
      .filter(([setting]) => setting !== "paused")
      .map(([setting, value]) => field(setting, value, setting in overrides));
    const problem = h("p", { class: "hint", role: "alert" });
    let wanted = null;
    const review = event => {
      event.preventDefault();
      const changes = {};
      for (const one of fields) if (one.changed()) changes[one.setting] = one.value();
      if (Object.keys(changes).length === 0) {
        replace(problem, t("change.nothing"));
        return;
      }
      wanted = changes;
      dialog.close();
    };
    const dialog = openDialog(
      t("change.title", { name }),
      h(
        "form",
        { on: { submit: review } },
        h("div", { class: "settings" }, fields.map(one => one.element)),
        h("p", { class: "hint" }, t("change.hint")),
        problem,
        h(
          "div",
          { class: "actions" },
          h("button", { type: "submit", class: "primary" }, t("change.review")),
          h("button", { type: "button", class: "quiet", on: { click: () => dialog.close() } }, t("cancel")),
        ),
      ),
      () => resolve(wanted),
    );
  });
}

function field(setting, value, overridden) {
  const id = `setting-${setting}`;
  const before = value === null ? "" : String(value);
  const input = CHOICES[setting]
    ? h(
        "select",
        { id, name: setting },
        overridden ? h("option", { value: "" }, t("change.configured")) : null,
        CHOICES[setting].map(choice => h("option", { value: choice, selected: choice === before }, choice)),
      )
    : h("input", { id, name: setting, type: "number", min: 0, step: setting === "weight" ? "any" : 1, value: before, inputmode: "decimal" });
  const note = overridden ? h("span", { class: "flag info" }, t("flag.changed")) : null;
  return {
    setting,
    element: h("div", { class: "field" }, h("label", { for: id }, settingName(setting), note), input),
    changed: () => input.value !== before && (input.value !== "" || overridden),
    value: () => (input.value === "" ? null : CHOICES[setting] ? input.value : Number(input.value)),
  };
}
