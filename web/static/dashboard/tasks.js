// Finding tasks: by a part of their id or user, by what is known of them, by time; in any order, to be kept as a file. What is
// asked for stands in the address.

import { call, explain } from "../common/api.js";
import { h, labelled, later, replace } from "../common/dom.js";
import { dateTime, duration, fieldTime, when } from "../common/format.js";
import { onLanguage, t } from "../common/i18n.js";
import { LiveTable, rowButton } from "../common/table.js";
import { cancel, cancelFound, save } from "./actions.js";
import { line } from "./form.js";

const AGAIN_MS = 5000;
const PAGE = 50;
const STATUSES = ["queued", "executing", "completed", "failed", "cancelled"];
const TASK_ID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;
const MAX_SAVED = 2000;
const LIVE = ["", "queued", "executing"];
const LINKED = ["user"]; // filters without a field
const CHOSEN = ["status", "queue", "model", "worker"];
const TYPED = ["text", "code", "from", "to"];
const TIMES = ["from", "to"];
const BULK = ["user", "queue", "model", "worker"];
const FILTERS = [...LINKED, ...CHOSEN, ...TYPED];

export class Tasks {
  /** `wanted`: URLSearchParams of the address; `names()`: { queues, models, workers: [id, name] } that are known. */
  constructor(wanted, { names }) {
    this._wanted = wanted;
    this._names = names;
    this._rows = [];
    this._next = null;
    this._pages = 1;
    this._calledOff = () => {};
    this._stopped = false;
    this._asked = 0;
    this._problem = h("div", { role: "alert" });
    this._empty = h("p", { class: "empty", hidden: true, dataset: { t: "tasks.empty" } }, t("tasks.empty"));
    this._more = h("button", { type: "button", hidden: true, dataset: { t: "load.more" }, on: { click: () => this._showMore() } }, t("load.more"));
    this._table = taskTable(() => this._read(), order => this._ordered(order));
    this._table.order(wanted.get("sort") ?? "");
    this._codes = h("datalist", { id: "find-codes" });
    this._all = h("div", { class: "actions end" });
    this._form = h("div");
    this.element = h(
      "div",
      { class: "grid" },
      this._form,
      h(
        "section",
        { class: "panel", id: "tasks", "aria-labelledby": "tasks-title" },
        h("div", { class: "panel-head" }, h("h2", { id: "tasks-title", dataset: { t: "tasks.title" } }, t("tasks.title")), h("span", { class: "muted small", dataset: { t: "tasks.hint" } }, t("tasks.hint")), this._all),
        this._problem,
        this._empty,
        this._table.element,
        h("div", { class: "more-row" }, this._more),
      ),
    );
    this._drawForm();
    this._forget = onLanguage(() => this._drawForm(this._typed()));
    this._read();
  }

  close() {
    this._stopped = true;
    this._calledOff();
    this._forget();
    this._table.close();
  }

  /** Search for something else; the fields stay where they are. */
  use(wanted) {
    const before = String(this._query());
    this._wanted = wanted;
    this._table.order(wanted.get("sort") ?? "");
    if (String(this._query()) === before) return; // another order
    this._pages = 1;
    const held = document.activeElement?.id;
    this._drawForm();
    if (held) document.getElementById(held)?.focus();
    this._read();
  }

  /** A picture of the feed: queues and models may have become known. */
  show() {
    const known = JSON.stringify(this._names());
    if (known !== this._known && !this._form.contains(document.activeElement)) this._drawForm(this._typed());
  }

  _typed() {
    return Object.fromEntries(TYPED.map(name => [name, this._form.querySelector(`#find-${name}`).value]));
  }

  /** `typed`: what stands in the fields, which need not be what is asked for yet. */
  _drawForm(typed = {}) {
    const names = this._names();
    this._known = JSON.stringify(names);
    const { queues, models } = names;
    const workers = new Map(names.workers);
    const wanted = name => this._wanted.get(name) ?? "";
    const asked = name => (TIMES.includes(name) ? fieldTime(wanted(name)) : wanted(name));
    const field = (name, attributes) =>
      labelled(t(`tasks.${name}`), line(`find-${name}`, { name, value: typed[name] ?? asked(name), ...attributes }), "field wide");
    const choice = (name, values, text = value => value) => {
      const all = wanted(name) && !values.includes(wanted(name)) ? [...values, wanted(name)] : values;
      const select = h(
        "select",
        { id: `find-${name}`, name, on: { change: () => go() } },
        h("option", { value: "" }, t("tasks.any")),
        all.map(value => h("option", { value, selected: value === wanted(name) }, text(value))),
      );
      return labelled(t(`tasks.${name}`), select);
    };
    const form = h(
      "form",
      { class: "panel", role: "search", on: { submit: event => (event.preventDefault(), go()) } },
      h(
        "div",
        { class: "search" },
        field("text", { type: "search" }),
        choice("status", STATUSES, status => t(`status.${status}`)),
        choice("queue", queues),
        choice("model", models),
        choice("worker", [...workers.keys()], id => workers.get(id) ?? id),
        field("code", { list: "find-codes", maxlength: 256 }),
        field("from", { type: "datetime-local" }),
        field("to", { type: "datetime-local" }),
        this._codes,
        h("button", { type: "submit", class: "primary" }, t("tasks.find")),
      ),
      this._chips(),
    );
    const go = () => {
      const value = name => {
        const text = form.elements[name].value.trim();
        if (text && text === asked(name)) return wanted(name); // (a field knows no seconds)
        return text && TIMES.includes(name) ? String(new Date(text).getTime()) : text;
      };
      if (TASK_ID.test(value("text"))) {
        location.hash = `#/tasks/${value("text").toLowerCase()}`;
        return;
      }
      const query = new URLSearchParams([...[...TYPED, ...CHOSEN].map(name => [name, value(name)]), ...[...LINKED, "sort"].map(name => [name, wanted(name)])].filter(([, text]) => text));
      const hash = query.size ? `#/tasks?${query}` : "#/tasks";
      if (location.hash === hash) this._read();
      else location.hash = hash;
    };
    replace(this._form, form);
    this._drawActions();
  }

  /** Filters that have no field: they come from links, and can be taken off. */
  _chips() {
    const chips = LINKED
      .filter(name => this._wanted.get(name))
      .map(name => {
        const without = new URLSearchParams(this._wanted);
        without.delete(name);
        const text = t(`tasks.${name}`, { value: this._wanted.get(name) });
        return h("a", { class: "tag", href: without.size ? `#/tasks?${without}` : "#/tasks" }, `${text} ✕`);
      });
    return chips.length ? h("div", { class: "actions" }, chips) : null;
  }

  _query() {
    return new URLSearchParams(FILTERS.filter(name => this._wanted.get(name)).map(name => [name, this._wanted.get(name)]));
  }

  /** What can be done with all that is found. */
  _drawActions() {
    const query = this._query();
    const cancellable = BULK.some(name => query.has(name)) && LIVE.includes(query.get("status") ?? "") && !TYPED.some(name => query.has(name));
    replace(
      this._all,
      h("button", { type: "button", class: "small", id: "save-tasks", on: { click: () => save(query, MAX_SAVED) } }, t("tasks.save")),
      cancellable ? h("button", { type: "button", class: "small danger", id: "cancel-found", on: { click: () => cancelFound(query, () => this._read()) } }, t("tasks.cancel.all")) : null,
    );
  }

  /** The reader wants another order: it belongs to the address. */
  _ordered(order) {
    const query = new URLSearchParams(this._wanted);
    if (order) query.set("sort", order);
    else query.delete("sort");
    location.hash = query.size ? `#/tasks?${query}` : "#/tasks";
  }

  async _read() {
    this._calledOff();
    this._asked += 1;
    const mine = this._asked;
    try {
      const rows = [];
      let after = null;
      for (let page = 0; page < this._pages; page += 1) {
        const query = this._query();
        query.set("limit", PAGE);
        if (after) query.set("after", after);
        const answer = await call(`/api/admin/tasks?${query}`);
        if (this._stopped || mine !== this._asked) return;
        rows.push(...answer.tasks.map(row => ({ ...row, now: answer.now })));
        after = answer.next;
        if (!after) break;
      }
      this._rows = rows;
      this._next = after;
      this._draw();
      replace(this._problem);
    } catch (problem) {
      if (this._stopped || mine !== this._asked) return;
      replace(this._problem, h("p", { class: "notice bad" }, explain(problem)));
    }
    this._calledOff = later(() => this._read(), AGAIN_MS * this._pages); // however many pages are shown, one call in so long
  }

  _draw() {
    for (const { code } of this._rows) {
      if (code && !this._codes.querySelector(`[value="${CSS.escape(code)}"]`)) this._codes.append(h("option", { value: code }));
    }
    this._table.update(this._rows, row => row.taskId);
    this._table.element.hidden = this._rows.length === 0;
    this._empty.hidden = this._rows.length > 0;
    this._more.hidden = this._next === null;
  }

  _showMore() {
    this._pages += 1;
    this._read();
  }
}

/** A task's status as a coloured chip. */
export const statusChip = status => h("span", { class: "chip", dataset: { status } }, t(`status.${status}`));

export const live = task => task.status === "queued" || task.status === "executing";

/** How long a task waited before its (last) grant, and how long that has run, ms; null where there is none. */
export function spans(task) {
  const now = task.endedAt ?? task.now;
  return {
    waited: (task.startedAt ?? now) - task.enqueuedAt,
    ran: task.startedAt === null ? null : now - task.startedAt,
  };
}

const taskTable = (after, onOrder) =>
  new LiveTable(
    [
      {
        name: "task.id",
        sign: row => row.taskId,
        draw: row => h("a", { class: "id", href: `#/tasks/${row.taskId}` }, row.taskId),
      },
      { name: "task.status", sign: row => row.status, draw: row => statusChip(row.status) },
      { name: "task.user", sort: row => row.user, sign: row => row.user, draw: row => h("a", { class: "who", href: `#/tasks?user=${encodeURIComponent(row.user)}` }, row.user) },
      { name: "task.model", sort: row => row.model, sign: row => row.model, draw: row => h("span", { class: "who" }, row.model) },
      { name: "task.queue", sign: row => row.queue },
      { name: "task.at", class: "num", sort: row => row.enqueuedAt, sign: row => row.enqueuedAt, draw: row => h("span", { title: dateTime(row.enqueuedAt) }, when(row.enqueuedAt, row.now)) },
      { name: "task.waited", class: "num", sort: row => spans(row).waited, sign: row => duration(spans(row).waited) },
      { name: "task.ran", class: "num", sort: row => spans(row).ran, sign: row => duration(spans(row).ran) },
      {
        name: "task.why",
        sign: row => row.code,
        draw: row => (row.code && row.status === "failed" ? h("span", { class: "who why" }, h("span", { class: "id", title: row.category ? t("codes.category", { category: row.category }) : null }, row.code)) : null),
      },
      {
        name: "",
        class: "end",
        sign: row => String(live(row)),
        draw: row => (live(row) ? h("div", {}, rowButton("cancel", t("action.cancel"), () => cancel(row, after), { label: t("action.cancel.label", { name: row.taskId }), danger: true })) : null),
      },
    ],
    "tasks.title",
    onOrder,
  );
