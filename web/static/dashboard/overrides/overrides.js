// Overrides: values on top of the configuration of queues, models and routes. List, create, change share and end, promote, roll back.

import { call, explain } from "../../common/api.js";
import { h } from "../../common/dom.js";
import { dateTime, percent } from "../../common/format.js";
import { t } from "../../common/i18n.js";
import { PagedTable } from "../../common/paged.js";
import { askAgain, toast } from "../../common/page.js";
import { LiveTable } from "../../common/table.js";
import { settingName, valueText } from "../actions.js";
import { actButton, choice, field, line, openForm } from "../form.js";
import { panel } from "../parts.js";

const PATH = "/api/admin/overrides";
const pathOf = ({ id }) => `${PATH}/${encodeURIComponent(id)}`;

export class Overrides {
  constructor() {
    this._newest = undefined;
    const done = () => this._list.read();
    this._list = new PagedTable(overrideTable(done), {
      path: () => PATH,
      rowsOf: answer => answer.overrides,
      keyOf: row => row.id,
      empty: "overrides.empty",
    });
    const create = actButton("create-override", "overrides.create", () => createForm(done));
    this.element = panel("overrides", "overrides.title", { hint: "overrides.hint", end: create }, this._list.element);
    done();
  }

  close() {
    this._list.close();
  }

  /** The address says nothing more. */
  use() {}

  /** A picture of the feed: each change of an override has an entry in the audit log. */
  show(picture) {
    if (!picture.store.up || picture.audit === this._newest) return;
    const first = this._newest === undefined;
    this._newest = picture.audit;
    if (!first) this._list.read();
  }
}

const target = row => h("span", { class: "who" }, h("small", {}, t(`overrides.target.${row.target}`)), h("b", {}, row.name), h("small", { class: "id" }, row.id));

const shown = value => (Array.isArray(value) ? value.join(", ") || t("value.none") : valueText(value));

const values = row => h("div", {}, Object.entries(row.values).map(([name, value]) => h("div", { class: "change" }, `${settingName(name)} → `, h("code", {}, shown(value)))));

function status(row) {
  const flag = h("span", { class: `flag ${row.problem ? "bad" : row.status === "active" ? "good" : "info"}` }, t(`overrides.status.${row.problem ? "invalid" : row.status}`));
  return row.problem ? h("div", {}, flag, h("small", { class: "sub" }, row.problem)) : flag;
}

const share = row => percent(row.percent / 100);
const ends = row => (row.until ? dateTime(row.until) : t("overrides.open"));
const creator = row => (row.createdBy === "(open)" ? t("audit.open") : row.createdBy);

function buttons(row, done) {
  const active = row.status === "active";
  return h(
    "div",
    { class: "actions" },
    active ? actButton("update-override", "overrides.update", () => updateForm(row, done)) : null,
    active ? actButton("promote-override", "overrides.promote", () => carryOut(row, "promote", done)) : null,
    actButton("roll-back-override", "overrides.rollback", () => carryOut(row, "rollback", done, true), "danger"),
  );
}

async function carryOut(row, action, done, danger = false) {
  const question = { title: t(`overrides.${action}.title`, row), text: t(`overrides.${action}.text`), action: t(`overrides.${action}`), danger };
  if (!(await askAgain(question))) return;
  try {
    await call(`${pathOf(row)}/${action}`, { method: "POST" });
    toast(t(`overrides.${action}.done`, row), "good");
  } catch (problem) {
    toast(explain(problem), "bad");
  }
  done();
}

const percentField = value => field("percent", line("override-percent", { type: "number", min: 1, max: 100, step: 1, value }), t("overrides.percent"), t("overrides.percent.hint"));

function untilField(until) {
  const local = ms => new Date(ms - new Date(ms).getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
  return field("until", line("override-until", { type: "datetime-local", value: until ? local(until) : "" }), t("overrides.until"), t("overrides.until.hint"));
}

/** Open a form that sends `body()`. */
function form({ title, fields, action, path, method, body, name, done }) {
  openForm({
    title,
    content: fields.map(one => one.element),
    fields,
    action,
    work: async () => {
      await call(path, { method, body: body() });
      toast(t("done.change", { name: name() }), "good");
      done();
    },
  });
  fields[0].control.focus();
}

const chosenPercent = one => Number(one.control.value) || null;
const chosenUntil = one => (one.control.value ? new Date(one.control.value).getTime() : null);

function updateForm(row, done) {
  const [share_, until] = [percentField(row.percent), untilField(row.until)];
  const fields = row.target === "route" ? [share_, until] : [until];
  const body = () => ({ ...(fields.includes(share_) ? { percent: chosenPercent(share_) } : {}), until: chosenUntil(until) });
  form({ title: t("overrides.update.title", row), fields, action: t("overrides.update"), path: pathOf(row), method: "PATCH", body, name: () => row.name, done });
}

function createForm(done) {
  const kinds = ["route", "model", "queue"].map(name => [name, t(`overrides.target.${name}`)]);
  const kind = field("target", choice("override-target", kinds, "route"), t("overrides.target"));
  const name = field("name", line("override-name"), t("overrides.name"));
  const set = field("values", h("textarea", { id: "override-values", rows: 3, spellcheck: "false" }), t("overrides.values"), t("overrides.values.hint"));
  const [share_, until] = [percentField(""), untilField(null)];
  const body = () => ({ target: kind.control.value, name: name.control.value, values: read(set.control.value), percent: chosenPercent(share_), until: chosenUntil(until) });
  form({ title: t("overrides.create"), fields: [kind, name, set, share_, until], action: t("overrides.create"), path: PATH, method: "POST", body, name: () => name.control.value, done });
}

/** `name=value` of each line; numbers, true, false, null and lists as in JSON, the rest is text. */
function read(text) {
  const lines = text.split("\n").filter(one => one.trim());
  return Object.fromEntries(
    lines.map(one => {
      const [name, ...rest] = one.split("=");
      const value = rest.join("=").trim();
      try {
        return [name.trim(), JSON.parse(value)];
      } catch {
        return [name.trim(), value];
      }
    }),
  );
}

const overrideTable = done =>
  new LiveTable(
    [
      { name: "overrides.target", sign: row => `${row.target} ${row.name}`, draw: target },
      { name: "overrides.values", class: "wide", sign: row => JSON.stringify(row.values), draw: values },
      { name: "overrides.percent", sign: share },
      { name: "overrides.status", sign: row => `${row.status} ${row.problem}`, draw: status },
      { name: "overrides.until", sign: ends },
      { name: "overrides.created", sign: row => `${creator(row)}, ${dateTime(row.createdAt)}` },
      { name: "overrides.actions", sign: row => JSON.stringify(row), draw: row => buttons(row, done) },
    ],
    "overrides.title",
  );
