// Overrides: values that replace the configuration of queues, models and routes.

import { h } from "../../common/dom.js";
import { dateTime, fieldTime, percent } from "../../common/format.js";
import { t } from "../../common/i18n.js";
import { settingName, valueText } from "../actions.js";
import { actor, flag, listed } from "./cells.js";

const PATH = "/api/admin/overrides";
const pathOf = ({ id }) => `${PATH}/${encodeURIComponent(id)}`;
const active = row => row.status === "active";

const target = row => h("span", { class: "who" }, h("small", {}, t(`overrides.target.${row.target}`)), h("b", {}, row.name), h("small", { class: "id" }, row.id));
const shown = value => (Array.isArray(value) ? value.join(", ") || t("value.none") : valueText(value));
const values = row => h("div", {}, Object.entries(row.values).map(([name, value]) => h("div", { class: "change" }, `${settingName(name)} → `, h("code", {}, shown(value)))));

const status = row =>
  h(
    "div",
    {},
    flag(t(`overrides.status.${row.problem ? "invalid" : row.status}`), row.problem ? "bad" : active(row) ? "good" : "info"),
    row.problem ? h("small", { class: "sub" }, row.problem) : null,
  );

/** `name=value` of each line; numbers, true, false, null and lists as in JSON, any other value is text. */
function readValues(text) {
  const pairs = text.split("\n").filter(one => one.trim()).map(one => one.split(/=(.*)/s));
  return Object.fromEntries(
    pairs.map(([name, value = ""]) => {
      try {
        return [name.trim(), JSON.parse(value)];
      } catch {
        return [name.trim(), value.trim()];
      }
    }),
  );
}

const percentField = value => ({ name: "percent", type: "number", hint: "overrides.percent.hint", value, parse: typed => Number(typed) || null });
const untilField = until => ({ name: "until", type: "datetime-local", hint: "overrides.until.hint", value: fieldTime(until), parse: typed => (typed ? new Date(typed).getTime() : null) });

const create = {
  name: "create-override",
  label: "overrides.create",
  title: () => t("overrides.create"),
  fields: () => [
    { name: "target", options: ["route", "model", "queue"].map(name => [name, t(`overrides.target.${name}`)]) },
    { name: "name" },
    { name: "values", type: "lines", hint: "overrides.values.hint", parse: readValues },
    percentField(""),
    untilField(null),
  ],
  send: (_, body) => [PATH, { body }],
  done: ({ name }) => t("done.change", { name }),
};

const update = {
  name: "update-override",
  label: "action.change",
  when: active,
  title: row => t("keys.change", { id: row.name }),
  fields: row => [...(row.target === "route" ? [percentField(row.percent)] : []), untilField(row.until)],
  send: (row, body) => [pathOf(row), { method: "PATCH", body }],
  done: (_, row) => t("done.change", { name: row.name }),
};

const end = (action, status, more) => ({
  name: `${action}-override`,
  label: `overrides.${action}`,
  title: row => t(`overrides.${action}.title`, row),
  text: () => t(`overrides.${action}.text`),
  send: row => [pathOf(row), { method: "PATCH", body: { status } }],
  done: (_, row) => t(`overrides.${action}.done`, row),
  ...more,
});

export const overrides = listed({
  name: "overrides",
  whole: true,
  path: () => PATH,
  rows: answer => answer.overrides,
  key: row => row.id,
  buttons: [create],
  actions: [update, end("promote", "promoted", { when: active }), end("rollback", "rolled_back", { danger: true })],
  columns: () => [
    { name: "col.target", value: target },
    { name: "col.values", wide: true, value: values },
    { name: "col.percent", value: row => percent(row.percent / 100) },
    { name: "col.status", value: status },
    { name: "col.until", value: row => (row.until ? dateTime(row.until) : t("overrides.open")) },
    { name: "col.created", value: row => `${actor(row.createdBy)}, ${dateTime(row.createdAt)}` },
  ],
});
