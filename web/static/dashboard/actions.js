// What an operator can do with queues, models, upstreams, workers and tasks, as actions of form.js.

import { call } from "../common/api.js";
import { number } from "../common/format.js";
import { has, language, t } from "../common/i18n.js";

/** A model's name may hold slashes, which the gateway's path takes as they are; anything else is escaped. */
const pathOf = (kind, row) => `/api/admin/${kind}s/${row[kind].split("/").map(encodeURIComponent).join("/")}`;
const patch = (kind, row, body) => [pathOf(kind, row), { method: "PATCH", body }];

/** A setting's value in words. */
export function valueText(value) {
  if (value === null || value === undefined) return t("value.none");
  if (typeof value === "boolean") return t(`value.${value}`);
  if (typeof value === "object") return JSON.stringify(value);
  return typeof value === "number" ? number(value, 6) : String(value);
}

/** A setting's name in words; one that is not known keeps its own. */
export const settingName = name => (has(`setting.${name}`) ? t(`setting.${name}`) : name);

// ---- queues and models ----------

/** The purpose of each setting. The gateway gives it in English, from the settings' own texts. */
export const CHINESE = {
  weight: "争用模型时的份额，相对于其他有等待任务的队列。",
  max_length: "此处最多可等待的任务数，所有模型合计；未设置时采用 max_queue_length。",
  max_wait: "任务在此最多等待的时间，例如 30s。",
  max_running: "此队列可同时运行的任务数，所有模型与副本合计；即使有空闲槽位，超出的任务也会等待。",
  reserved: "在每个设有 concurrency 的模型上为此队列预留的槽位：未用满时其任务优先，未借出的保持空闲。",
  admission: "何时立即拒绝任务而不排队。",
  concurrency: "此模型可同时运行的任务数，所有副本合计。",
  cost: "公平性按什么计量。",
  requests_per_minute: "任意一分钟内可开始的此模型任务数，所有副本合计：即上游允许的数量。",
  tokens_per_minute: "任意一分钟内此模型的任务可用的词元数，输入与输出合计：开始时估算，结束时更正。",
  windows: "模型的目标在任意一段时间内可收到的请求数，无论从何时算起，所有副本与工作进程合计：50/1s，或至多三个窗口，50/1s, 1000/1m（ms、s、m 或 h）。",
  max_running_per_user: "一个用户在此模型上可同时运行的任务数；其余任务等待，队列中后面的任务先行。",
  max_waiting_per_user: "一个用户可为此模型等待的任务数，所有队列合计；超出的以 429 拒绝。",
  breaker_failures: "一分钟内上游（工作进程背后的服务器）失败多少次，且占已结束任务的一半时，为此模型打开其熔断器；0 表示不用熔断器。",
  breaker_open: "熔断器首次打开的时长，例如 5s；之后放行少量任务试探，每次试探失败则时长加倍，最多一分钟。",
};

/** A setting as a field. Without a value, the configuration applies. */
function settingField(name, value, overridden, { type, choices, minimum, maximum, help }) {
  const least = minimum === null ? "" : ` ${t("change.minimum", { n: number(minimum, 3) })}`;
  return {
    name,
    label: overridden ? `${settingName(name)} (${t("flag.changed")})` : settingName(name),
    hint: `${name}: ${(language() === "zh" && CHINESE[name]) || help}${least}`,
    value: value ?? "",
    options: choices && [...(overridden ? [["", t("change.configured")]] : []), ...choices.map(one => [one, one])],
    ...(type === "string" ? {} : { type: "number", min: minimum, max: maximum, step: type === "integer" ? 1 : "any", parse: text => (text === "" ? null : Number(text)) }),
  };
}

/** Change the limits of a queue or model; `only`: the names of those that are asked for. */
const change = (kind, name, only = null) => ({
  name,
  label: `action.${name}`,
  needs: ["overrides"],
  partial: true,
  title: row => t("change.title", { name: row[kind] }),
  text: row => (only ? t("change.everyone", { name: row[kind] }) : t("change.hint")),
  fields: async row => {
    const { values, overrides, settings } = await call(...patch(kind, row, {})); // which changes nothing and reports what holds
    const names = only ?? Object.keys(settings);
    return names.map(setting => settingField(setting, values[setting], setting in overrides, settings[setting]));
  },
  send: (row, values) => patch(kind, row, values),
  done: (_, row) => t("done.change", { name: row[kind] }),
});

const pause = (kind, what, paused) => ({
  name: what,
  label: `action.${what}`,
  needs: ["overrides"],
  danger: paused,
  when: row => row.paused !== paused,
  title: row => t(`ask.${what}`, { name: row[kind] }),
  text: () => t(`ask.${what}.text`),
  send: row => patch(kind, row, { paused: paused || null }), // null: as configured, which is not paused
  done: (_, row) => t(`done.${what}`, { name: row[kind] }),
});

export const limitActions = kind => [pause(kind, "pause", true), pause(kind, "resume", false), change(kind, "change")];

export const throttle = { ...change("model", "throttle", ["max_running_per_user", "max_waiting_per_user"]), needs: ["overrides", "limits"], when: row => row.model && row.waiting };

// ---- upstreams and workers ----------

export const isCoolingDown = ({ cooldownUntil, now }) => cooldownUntil > now;

const breakerName = ({ model, upstream }) => t("breaker.of", { model, upstream: upstream || t("upstream.unnamed") });

/** Keep the breaker of an upstream of a model `open` or `closed`, or let it change by itself (`auto`); not while it is so. */
export const breakerActions = ["open", "closed", "auto"].map(breaker => ({
  name: `breaker-${breaker}`,
  label: `action.breaker.${breaker}`,
  needs: ["overrides", "breakers"],
  danger: breaker === "open",
  when: row => (breaker === "auto" ? row.forced || row.breaker !== "closed" || isCoolingDown(row) : !row.forced || row.breaker !== breaker),
  title: row => t(`ask.breaker.${breaker}`, { name: breakerName(row) }),
  text: () => t(`ask.breaker.${breaker}.text`),
  send: row => patch("model", row, { breaker, upstream: row.upstream }),
  done: (_, row) => t(`done.breaker.${breaker}`, { name: breakerName(row) }),
}));

export const drain = {
  name: "drain",
  label: "action.drain",
  danger: true,
  when: row => !row.draining,
  title: row => t("ask.drain", { name: row.name || row.workerId }),
  text: row => t(row.version >= 2 ? "ask.drain.text.v2" : "ask.drain.text.v1", { n: row.running }),
  send: row => [`/api/admin/workers/${row.workerId}/drain`, { body: {} }],
  done: (_, row) => t("done.drain", { name: row.name || row.workerId }),
};

// ---- tasks ----------

export const live = task => task.status === "queued" || task.status === "executing";

const cancelTasks = (query, more) => ({
  name: "cancel",
  danger: true,
  send: row => [`/api/admin/tasks/cancel?${query(row)}`, { body: {} }],
  done: ({ cancelled }) => t("done.cancel.all", { n: cancelled }),
  ...more,
});

export const cancel = cancelTasks(row => `task=${row.taskId}`, {
  label: "action.cancel.task",
  when: live,
  title: row => t("ask.cancel", { id: row.taskId }),
  text: row => t("ask.cancel.text", { user: row.user }),
});

/** Cancel all waiting tasks of a user. */
export const cancelWaiting = cancelTasks(({ user }) => new URLSearchParams({ status: "queued", user }), {
  label: "action.cancel.waiting",
  when: row => row.waiting,
  title: ({ user, waiting }) => t("ask.cancel.waiting", { n: waiting, user }),
  text: () => t("ask.cancel.waiting.text"),
});

/** Cancel all tasks that a search finds. `queryOf(query)`: of the search's address. */
export const cancelFound = (queryOf, when) =>
  cancelTasks(queryOf, {
    name: "cancel-found",
    label: "action.cancel.all",
    when,
    title: () => t("ask.cancel.found"),
    text: query => t("ask.cancel.found.text", { filter: [...queryOf(query)].map(([name, value]) => `${name} = ${value}`).join(", ") }),
  });
