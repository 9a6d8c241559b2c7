// Keys and worker tokens: the list, and one key with its limits, its quota and its ledger.

import { call, enabled } from "../../common/api.js";
import { h } from "../../common/dom.js";
import { dateTime, exactCredits, number } from "../../common/format.js";
import { t } from "../../common/i18n.js";
import { flag, listed, queryOf, text } from "./cells.js";

const DAY_MS = 86_400_000;
const SCOPES = ["call", "viewer", "metrics", "admin"];
const LIMITS = ["requests_per_minute", "requests_per_day", "tokens_per_minute", "tokens_per_day", "max_running", "max_waiting"];
const SWITCHES = ["signing", "delegating"];
const offeredSwitches = () => SWITCHES.filter(name => name !== "signing" || enabled("signed_tokens"));
const TONES = { valid: "good", expired: "warn", revoked: "bad", replaced: "warn", unusable: "warn", configuration: "info" };

const pathOf = id => `/api/admin/keys/${encodeURIComponent(id)}`;
const camel = name => name.replace(/_(\w)/g, (_, letter) => letter.toUpperCase());
const statusOf = row => (row.source === "configuration" ? "configuration" : row.status);
const statusFlag = row => flag(t(`keys.status.${statusOf(row)}`), TONES[statusOf(row)]);
const changeable = row => row.source === "database" && row.status !== "revoked" && row.status !== "replaced";
const date = ms => (ms ? dateTime(ms) : t("keys.never"));

/** A whole number where one was typed, null for nothing; the gateway says what is wrong with anything else. */
const amount = typed => (typed === "" ? null : /^-?\d{1,15}$/.test(typed) ? Number(typed) : typed);

function scopesOf({ kind, settings }) {
  if (kind === "worker") return t("keys.kind.worker");
  const scopes = settings.scopes ?? [];
  return [...scopes, ...SWITCHES.filter(name => settings[name]).map(name => t(`col.${name}`))].join(", ");
}

function details({ kind, settings }) {
  const models = (settings.models ?? ["*"]).join(", ");
  return [kind === "caller" ? settings.tier : "", settings.weight && settings.weight !== 1 ? `× ${settings.weight}` : "", models === "*" ? "" : models].filter(Boolean).join(" · ");
}

const create = {
  name: "create-key",
  label: "keys.create",
  title: () => t("keys.create"),
  fields: (_, { tiers }) => [
    { name: "kind", options: ["caller", "worker"].map(name => [name, t(`keys.kind.${name}`)]) },
    { name: "id", hint: "keys.id.hint" },
    { name: "scopes", options: SCOPES.map(name => [name, t(`keys.scope.${name}`)]) },
    { name: "tier", options: tiers().map(name => [name, name]), value: "free" },
    { name: "models", hint: "keys.models.hint", parse: typed => typed.split(",").map(name => name.trim()).filter(Boolean) },
    { name: "weight", type: "number", hint: "keys.weight.hint", parse: typed => (typed ? Number(typed) : null) },
    { name: "expires", type: "date", parse: typed => (typed ? new Date(`${typed}T00:00`).getTime() : null) },
    { name: "note" },
    { name: "delegating", type: "checkbox", hint: "keys.delegating.hint" },
    ...(enabled("signed_tokens") ? [{ name: "signing", type: "checkbox", hint: "keys.signing.hint" }] : []),
  ],
  send: (_, { kind, id, note, models, expires, scopes, ...more }) => {
    const both = { kind, id, note, models: models.length ? models : null, expires };
    return ["/api/admin/keys", { body: kind === "worker" ? both : { ...both, scopes: [scopes], ...more } }];
  },
};

const rotate = {
  name: "rotate-key",
  label: "keys.rotate",
  when: changeable,
  title: row => t("keys.rotate.title", { id: row.id }),
  text: row => t(`keys.rotate.${row.kind}`),
  fields: () => [{ name: "keepMs", options: [["day", DAY_MS], ["week", 7 * DAY_MS], ["none", 0]].map(([name, ms]) => [String(ms), t(`keys.keep.${name}`)]), parse: Number }],
  send: (row, values) => [`${pathOf(row.id)}/rotate`, { body: values }],
};

const revoke = {
  name: "revoke-key",
  label: "keys.revoke",
  when: changeable,
  danger: true,
  title: row => t("keys.revoke.title", { id: row.id }),
  text: row => t(`keys.revoke.${row.kind}`),
  fields: row => (row.kind === "caller" ? [{ name: "now", label: "keys.revoke.now", type: "checkbox" }] : []),
  send: (row, { now = false }) => [`${pathOf(row.id)}/revoke`, { body: { now } }],
  done: (answer, row) => t("keys.revoked", { id: row.id, n: answer.cancelled }),
};

/** An action that changes what a key says. `body(values, row)`: the request's. */
const patch = (name, fields, body) => ({
  name: `change-${name}`,
  label: "action.change",
  when: changeable,
  title: row => t("keys.change", { id: row.id }),
  fields,
  send: (row, values) => [pathOf(row.id), { method: "PATCH", body: body(values, row) }],
  done: (_, row) => t("done.change", { name: row.id }),
});

const switches = patch("signing", row => offeredSwitches().map(name => ({ name, type: "checkbox", value: Boolean(row.settings[name]), hint: `keys.${name}.hint` })), values => values);

const changeLimits = part =>
  patch(
    part,
    row => LIMITS.map(name => ({ name: `${part}.${name}`, label: `setting.${name}`, value: row.settings[part]?.[name] ?? "", parse: amount })),
    values => {
      const wanted = LIMITS.map(name => [name, values[`${part}.${name}`]]).filter(([, value]) => value !== null);
      return { [part]: wanted.length ? Object.fromEntries([...LIMITS.map(name => [name, null]), ...wanted]) : null };
    },
  );

const changeQuota = patch(
  "quota",
  (row, { tiers }) => {
    const before = row.settings.quota;
    const others = [...new Set([before?.otherwise, ...tiers()])].filter(Boolean);
    return [
      { name: "quota.of", label: "quota.of", options: [["", t("quota.of.none")], ...["key", "user"].map(name => [name, t(`quota.of.${name}`)])], value: before?.of ?? (before ? "key" : "") },
      { name: "quota.budget", label: "quota.budget", hint: "quota.budget.hint", value: before?.budget ?? "" },
      { name: "quota.per", label: "quota.per", options: [["", t("value.none")], ...["day", "month"].map(name => [name, t(`quota.per.${name}`)])], value: before?.per ?? "" },
      { name: "quota.otherwise", label: "quota.otherwise", options: [["", t("quota.otherwise.reject")], ...others.map(name => [name, t("quota.otherwise.tier", { tier: name })])], value: before?.otherwise ?? "" },
    ];
  },
  values => ({ quota: values["quota.of"] ? Object.fromEntries(Object.entries(values).map(([name, value]) => [name.slice("quota.".length), value])) : null }),
);

/** Grant credits to the key, or to a user of it: `user` is the one that the page shows. */
const grant = user => ({
  name: "grant",
  label: "quota.grant",
  when: row => row.status !== "revoked" && row.settings.quota,
  title: row => t("quota.grant.title", { name: user ? `${row.id}/${user}` : row.id }),
  fields: row => [...(row.settings.quota.of === "user" && !user ? [{ name: "user" }] : []), { name: "credits", hint: "quota.credits.hint" }, { name: "note" }],
  send: (row, { user: typed, credits, note }, nonce) => {
    const name = row.settings.quota.of === "user" ? { user: `${row.id}/${user || typed || ""}` } : { key: row.id };
    return ["/api/admin/balances/grants", { body: { ...name, id: `dashboard-${nonce}`, credits: credits ?? "", note: note ?? "" } }];
  },
  done: answer => t("quota.granted", { n: exactCredits(answer.credits), left: exactCredits(answer.balance) }),
});

/** Each limit as a fact: how much of it is left. */
const limitFacts = (limits, left) =>
  LIMITS.filter(name => limits?.[name]).map(name => {
    const rest = left?.[camel(name)];
    return [`setting.${name}`, rest ? t("keys.left", { left: number(rest.remaining), of: number(rest.limit) }) : number(limits[name])];
  });

function quotaFacts({ settings: { quota } }, standing) {
  const facts = quota
    ? [
        ["quota.of", t(`quota.of.${quota.of ?? "key"}`)],
        ["quota.budget", quota.budget && `${exactCredits(quota.budget)} / ${t(`quota.per.${quota.per}`)}`],
        ["quota.otherwise", quota.otherwise ? t("quota.otherwise.tier", { tier: quota.otherwise }) : t("quota.otherwise.reject")],
      ]
    : [];
  if (!standing || !(quota || standing.granted || standing.spent)) return facts;
  const { available, balance, granted, spent, reserved, budget } = standing;
  return [
    ...facts,
    ["quota.available", exactCredits(available)],
    ["quota.balance", t("quota.balance.of", { n: exactCredits(balance), granted: exactCredits(granted), spent: exactCredits(spent) })],
    ["quota.reserved", exactCredits(reserved)],
    ["quota.left", budget && t("quota.left.of", { n: exactCredits(budget.remaining), limit: exactCredits(budget.limit), at: dateTime(budget.ends) })],
  ];
}

const payers = id => ({
  name: "payers",
  path: () => `/api/admin/balances?${new URLSearchParams({ key: id })}`,
  rows: answer => answer.rows.filter(row => row.of === "user" || row.granted || row.spent),
  key: row => row.user ?? "",
  columns: () => {
    const nameOf = row => (row.user?.startsWith(`${id}/`) ? row.user.slice(id.length + 1) : "");
    const credits = (name, value) => ({ name, num: true, value: row => exactCredits(value(row)) });
    return [
      { name: "col.user", value: row => (nameOf(row) ? h("a", { href: `#/keys/${id}?${new URLSearchParams({ user: nameOf(row) })}` }, nameOf(row)) : (row.user ?? row.key)) },
      credits("quota.available", row => row.available),
      credits("quota.balance", row => row.balance),
      credits("quota.spent", row => row.spent),
      credits("quota.reserved", row => row.reserved),
    ];
  },
});

const ledger = subject => ({
  name: "ledger",
  path: () => `/api/admin/balances/ledger?${new URLSearchParams(subject)}`,
  rows: answer => answer.rows,
  key: row => `${row.kind} ${row.id} ${row.fund} ${row.ends}`,
  columns: () => [
    { name: "col.at", value: row => dateTime(row.at) },
    { name: "ledger.what", wide: true, value: row => (row.kind === "task" ? h("a", { class: "id", href: `#/tasks/${row.id}` }, row.id) : h("span", {}, t("ledger.grant", { who: row.grantedBy }), " ", row.note || row.id)) },
    { name: "ledger.fund", value: row => (row.fund === "granted" ? t("ledger.granted") : t(`ledger.${row.fund}`, { at: dateTime(row.ends) })) },
    { name: "quota.reserved", num: true, value: row => (row.kind === "task" ? exactCredits(row.reserved) : "–") },
    { name: "ledger.refunded", num: true, value: row => (row.kind === "task" ? exactCredits(row.refunded) : "–") },
    { name: "ledger.amount", num: true, value: row => exactCredits(row.amount, "exceptZero") },
  ],
});

export const keys = listed({
  name: "keys",
  path: query => `/api/admin/keys?${queryOf(query, ["text"])}`,
  rows: answer => answer.keys,
  key: row => `${row.kind} ${row.id} ${row.source}`,
  filters: [{ name: "text", label: "keys.find" }],
  buttons: [create],
  actions: [rotate, revoke],
  columns: () => [
    { name: "col.id", value: row => h("span", { class: "who" }, h("a", { href: `#/keys/${row.id}${row.kind === "worker" ? "?kind=worker" : ""}` }, h("b", {}, row.id)), row.note ? h("small", {}, row.note) : null) },
    { name: "col.status", value: statusFlag },
    text("col.scopes", scopesOf),
    text("keys.details", details, { wide: true }),
    { name: "col.expires", value: row => (row.source === "configuration" ? "–" : date(row.expires)) },
    text("col.used", row => row.lastUsedAt && dateTime(row.lastUsedAt)),
  ],
});

export const key = {
  name: "keys",
  async load(id, query) {
    const row = await call(`${pathOf(id)}?${queryOf(query, ["kind", "user"])}`);
    const user = query.get("user");
    const each = row.settings.quota?.of === "user";
    const subject = row.kind !== "caller" || (each && !user) ? null : each ? { user: `${id}/${user}` } : { key: id };
    const standing = subject && enabled("credits") ? (await call(`/api/admin/balances?${new URLSearchParams({ ...subject, limit: 1 })}`).catch(() => ({ rows: [] }))).rows[0] : null;
    return { ...row, subject, standing };
  },
  draw(row, query) {
    const { id, settings, secrets, subject, standing } = row;
    const user = query.get("user") ?? "";
    const head = {
      name: "one_key",
      title: t("col.key"),
      notice: row.source === "configuration" ? t("keys.configured") : "",
      actions: [rotate, revoke],
      facts: [
        ["col.id", h("b", {}, id)],
        ["col.status", statusFlag(row)],
        ["col.scopes", scopesOf(row)],
        ["col.note", row.note],
        ["keys.details", details(row)],
        ["col.created", row.createdAt && dateTime(row.createdAt)],
        ["col.expires", row.source === "database" && date(row.expires)],
        ["col.used", row.lastUsedAt && dateTime(row.lastUsedAt)],
        ["keys.secrets", secrets.map(({ validUntil, signs }) => `${date(validUntil)}${signs ? ` (${t("col.signing")})` : ""}`).join(", ")],
      ],
    };
    if (row.kind !== "caller") return { groups: [head], sections: [] };
    const groups = [
      head,
      { name: "limits", needs: ["limits"], facts: limitFacts(settings.limits, row.limits), actions: [changeLimits("limits")] },
      ...(settings.delegating ? [{ name: "user_limits", needs: ["limits"], facts: limitFacts(settings.user_limits, row.userLimits), actions: [changeLimits("user_limits")], filters: [{ name: "user" }] }] : []),
      { name: "signing", title: t("col.signing"), facts: offeredSwitches().map(name => [`col.${name}`, t(`value.${Boolean(settings[name])}`)]), actions: [switches] },
      { name: "quota", needs: ["credits"], facts: quotaFacts(row, standing), actions: [grant(user), changeQuota] },
    ];
    const paid = settings.quota || standing?.granted || standing?.spent;
    const credits = subject ? (paid ? [ledger(subject)] : []) : [payers(id)];
    return { groups, sections: enabled("credits") ? credits : [] };
  },
};
