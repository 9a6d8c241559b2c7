// What an operator can do. Each action asks for confirmation and is recorded in the audit log.

import { call, explain } from "../common/api.js";
import { h, replace } from "../common/dom.js";
import { number } from "../common/format.js";
import { t } from "../common/i18n.js";
import { askAgain, openDialog, toast } from "../common/page.js";
import { keep } from "../common/transfer.js";
import { choice, field, line } from "./form.js";
import { helpText } from "./help.js";

const PATHS = { queue: "/api/admin/queues/", model: "/api/admin/models/" };
const MAX_WARNINGS = 3;

/** A model's name may hold slashes, which the gateway's path takes as they are; anything else is escaped. */
const pathOf = (kind, name) => PATHS[kind] + name.split("/").map(encodeURIComponent).join("/");

const patch = (kind, name, values, query = "") => call(pathOf(kind, name) + query, { method: "PATCH", body: values });

/** Do something and report the result; `after` is called on success. The feed shows the change within a second. */
async function carryOut(work, after = () => {}) {
  try {
    toast(await work(), "good");
  } catch (problem) {
    toast(explain(problem), "bad");
    return;
  }
  after();
}

/** Ask; if the operator agrees, do it. */
async function ask(question, work, after) {
  if (await askAgain(question)) await carryOut(work, after);
}

/** Pause or resume a queue or model (`kind`). */
export function pause(kind, name, paused) {
  const what = paused ? "pause" : "resume";
  const question = { title: t(`ask.${what}.${kind}`, { name }), text: t(`ask.${what}.${kind}.text`), action: t(`do.${what}`), danger: paused };
  return ask(question, async () => {
    await patch(kind, name, { paused: paused || null }); // null: as configured, which is not paused
    return t(`done.${what}`, { name });
  });
}

/** Drain a worker of the state's list. */
export function drain(worker) {
  const name = worker.name || worker.workerId;
  const text = t(worker.version >= 2 ? "ask.drain.text.v2" : "ask.drain.text.v1", { n: worker.running });
  return ask({ title: t("ask.drain", { name }), text, action: t("do.drain"), danger: true }, async () => {
    await call(`/api/admin/workers/${worker.workerId}/drain`, { method: "POST", body: {} });
    return t("done.drain", { name });
  });
}

/** Have the breaker of an upstream of a model `open` or `closed`, or let it go by itself (`auto`). */
export function forceBreaker({ model, upstream }, breaker) {
  const name = breakerName(model, upstream);
  const question = { title: t(`ask.breaker.${breaker}`, { name }), text: t(`ask.breaker.${breaker}.text`), action: t(`do.breaker.${breaker}`), danger: breaker === "open" };
  return ask(question, async () => {
    await patch("model", model, { breaker, upstream });
    return t(`done.breaker.${breaker}`, { name });
  });
}

/** What a breaker is called in sentences. */
export const breakerName = (model, upstream) => t("breaker.of", { model, upstream: upstream || t("upstream.unnamed") });

/** Cancel a task of a list or of its own page. */
export function cancel(task, after) {
  const text = t("ask.cancel.text", { id: task.taskId, user: task.user });
  return ask({ title: t("ask.cancel"), text, action: t("do.cancel"), danger: true }, async () => {
    const { cancelled } = await call(`/api/admin/tasks/cancel?task=${task.taskId}`, { method: "POST", body: {} });
    return cancelled ? t("done.cancel") : t("done.cancel.late");
  }, after);
}

const MAX_CALLS = 20;

/** Cancel all tasks of a user that wait. */
export const cancelWaiting = ({ user, waiting }, after) =>
  cancelAll(
    new URLSearchParams({ status: "queued", user }),
    { title: t("ask.cancel.waiting", { n: waiting, user }), text: t("ask.cancel.waiting.text", { n: waiting, user }) },
    after,
  );

/** Cancel all tasks that a search finds. */
export const cancelFound = (query, after) =>
  cancelAll(query, { title: t("ask.cancel.found"), text: t("ask.cancel.found.text", { filter: [...query].map(([name, value]) => `${name} = ${value}`).join(", ") }) }, after);

function cancelAll(query, question, after) {
  return ask({ ...question, action: t("do.cancel.all"), danger: true }, async () => {
    let n = 0;
    for (let calls = 0; calls < MAX_CALLS; calls += 1) {
      const { cancelled, more } = await call(`/api/admin/tasks/cancel?${query}`, { method: "POST", body: {} });
      n += cancelled;
      if (!more) break;
    }
    return t("done.cancel.all", { n });
  }, after);
}

const SAVED = ["taskId", "status", "user", "key", "model", "queue", "type", "code", "category", "enqueuedAt", "startedAt", "firstOutputAt", "endedAt", "attempt"];

/** A value of a CSV file, always quoted. What a table program would take for a formula, also behind another separator than ours,
 * gets an apostrophe. */
function csv(value) {
  if (value === null || value === undefined) return "";
  const text = String(value).replace(/(^|[;,|\t\r\n])(?=\s*[=+\-@])/g, "$1'");
  return `"${text.replaceAll('"', '""')}"`;
}

/** Save the tasks that a search finds as a CSV file, at most `most`, newest first. */
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
    keep(new Blob([lines.join("\r\n"), "\r\n"], { type: "text/csv" }), "tasks.csv");
    return t("done.save", { n: rows.length });
  });
}

/** A setting's value in words. */
export function valueText(value) {
  if (value === null || value === undefined) return t("value.none");
  if (typeof value === "boolean") return t(`value.${value}`);
  if (typeof value === "object") return JSON.stringify(value);
  return typeof value === "number" ? number(value, 6) : String(value);
}

/** A setting's name in words; one that is not known keeps its own. */
export const settingName = name => (t(`setting.${name}`) === `setting.${name}` ? name : t(`setting.${name}`));

let asking = false;

/** Ask for other limits of a queue or model, then once more, then change them. */
export const change = (kind, name) => changeFrom(kind, name, {});

/** The same for what a user may have of a model. */
export const throttle = name => changeFrom("model", name, { first: "max_running_per_user", intro: t("change.everyone", { name }) });

async function changeFrom(kind, name, opening) {
  if (asking) return; // a second click before the question is there
  asking = true;
  try {
    openLimits(kind, name, await patch(kind, name, {}), opening); // which changes nothing and says what holds
  } catch (problem) {
    toast(explain(problem), "bad");
  } finally {
    asking = false;
  }
}

/**
 * The limits as a form, which stays, with what was typed, until the gateway has taken the change or the reader thinks better of it. It
 * opens at the setting `first`, with the sentence `intro`.
 */
function openLimits(kind, name, { values, overrides, settings }, { first = null, intro = null }) {
  const fields = Object.entries(settings).map(([setting, about]) => settingField(setting, values[setting], setting in overrides, about));
  const notice = h("p", { class: "hint", role: "alert" });
  const box = h("div");
  let busy = false;

  const attempt = async work => {
    if (busy) return;
    busy = true;
    try {
      await work();
    } catch (problem) {
      replace(box, form);
      const wrong = complain(one => problem.fields?.[one.name]);
      replace(notice, wrong ? "" : explain(problem));
    } finally {
      busy = false;
    }
  };

  /** Show at each field what is wrong with it; whether anything is. */
  const complain = problemOf => {
    const wrong = fields.filter(one => one.complain(problemOf(one) ?? ""));
    wrong[0]?.control.focus();
    return wrong.length > 0;
  };

  const review = event => {
    event.preventDefault();
    const changed = fields.filter(one => one.changed());
    replace(notice, changed.length ? "" : t("change.nothing"));
    if (complain(one => (changed.includes(one) ? one.problem() : "")) || !changed.length) return;
    const wanted = Object.fromEntries(changed.map(one => [one.name, one.value()]));
    attempt(async () => {
      await patch(kind, name, wanted, "?check=true");
      showReview(wanted, await reservations(kind, name, wanted));
    });
  };

  const showReview = (wanted, warnings) => {
    const lines = Object.entries(wanted).map(([setting, value]) =>
      t("change.to", {
        name: settingName(setting),
        before: valueText(values[setting]),
        after: value === null ? t("change.configured") : valueText(value),
      }),
    );
    const apply = async () => {
      await patch(kind, name, wanted);
      dialog.close();
      toast(t("done.change", { name }), "good");
    };
    const back = h("button", { type: "button", class: "quiet", on: { click: () => replace(box, form) } }, t("change.back"));
    replace(
      box,
      h("p", {}, t("ask.change.text"), lines.map(line => h("strong", { class: "change-line" }, line))),
      warnings.map(text => h("p", { class: "notice warn" }, text)),
      h("div", { class: "actions" }, h("button", { type: "button", class: "primary", on: { click: () => attempt(apply) } }, t("do.change")), back),
    );
    back.focus();
  };

  const form = h(
    "form",
    { novalidate: true, on: { submit: review } },
    intro ? h("p", { class: "notice" }, intro) : null,
    h("div", { class: "settings" }, fields.map(one => one.element)),
    h("p", { class: "hint" }, t("change.hint")),
    notice,
    h(
      "div",
      { class: "actions" },
      h("button", { type: "submit", class: "primary" }, t("change.review")),
      h("button", { type: "button", class: "quiet", on: { click: () => dialog.close() } }, t("cancel")),
    ),
  );
  replace(box, form);
  const dialog = openDialog(t("change.title", { name }), box);
  fields.find(one => one.name === first)?.control.focus();
}

/** Warnings about models with more reserved slots, over all queues, than slots. */
async function reservations(kind, name, wanted) {
  if (!wanted.reserved && !wanted.concurrency) return [];
  const { queues, models } = await call("/api/admin/overview?tasks=0");
  const reserved = queues.reduce((sum, row) => sum + ((kind === "queue" && row.queue === name && wanted.reserved) || row.reserved || 0), 0);
  const limited = models.map(row => ({ name: row.model, limit: (kind === "model" && row.model === name && wanted.concurrency) || row.limit }));
  return limited
    .filter(row => (kind === "queue" || row.name === name) && row.limit && reserved > row.limit)
    .slice(0, MAX_WARNINGS)
    .map(row => t("change.over", { model: row.name, limit: number(row.limit), n: number(reserved) }));
}

/** A setting as a field of the form, with its bounds, and whether and to what it was changed. */
function settingField(name, value, overridden, about) {
  const id = `setting-${name}`;
  const before = value === null ? "" : String(value);
  const choices = [...(overridden ? [["", t("change.configured")]] : []), ...(about.choices ?? []).map(one => [one, one])];
  const control = about.choices
    ? choice(id, choices, before)
    : line(id, about.type === "string" ? { value: before } : { type: "number", min: about.minimum, step: about.type === "integer" ? 1 : "any", value: before, inputmode: "decimal" });
  const label = [settingName(name), overridden ? h("span", { class: "flag info" }, t("flag.changed")) : null];
  const least = about.minimum === null ? "" : ` ${t("change.minimum", { n: number(about.minimum, 3) })}`;

  /** What is wrong with the value by itself; "" when nothing is. */
  const problem = () => {
    if (control.validity.badInput) return t("change.number");
    const typed = Number(control.value);
    if (control.value === "" || about.type === "string") return "";
    if (typed < about.minimum) return t("change.minimum", { n: number(about.minimum, 3) });
    if (typed > about.maximum) return t("change.maximum", { n: number(about.maximum) });
    return about.type === "integer" && !Number.isInteger(typed) ? t("change.whole") : "";
  };
  return {
    ...field(name, control, label, [h("code", {}, name), `: ${helpText(name, about.help)}${least}`]),
    changed: () => control.validity.badInput || (control.value !== before && (control.value !== "" || overridden)),
    value: () => (control.value === "" ? null : about.type === "string" ? control.value : Number(control.value)),
    problem,
  };
}
