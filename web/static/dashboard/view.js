// The parts of all views: panels, tables in panels, and one view for all kinds of records that operators list, filter, look at and
// change. resources/ describes each kind as data.

import { call, enabled, explain } from "../common/api.js";
import { byId, h, labelled, later, replace, setText } from "../common/dom.js";
import { t } from "../common/i18n.js";
import { LiveTable } from "../common/table.js";
import { actionButton, offered } from "./form.js";

const PAGE = 50;
const AGAIN_MS = 5000;
const MAX_IN_HEAD = 2; // filters; more of them have a row of their own

/** A section under a heading; `note` stands behind it, and `end` at the other end of the head. */
export const panel = (id, title, { note = null, end = [] }, ...content) =>
  h(
    "section",
    { class: "panel", id, "aria-labelledby": `${id}-title` },
    h("div", { class: "panel-head" }, h("h2", { id: `${id}-title` }, title), note, h("div", { class: "actions end" }, end)),
    content,
  );

/**
 * A panel with a table. `spec`: { name, key(row), columns, actions, hint, empty }; its strings are `<name>.title`, and `.hint` and `.empty`
 * unless `hint` is false and `empty` another content. `after()` follows an action; `order` and `onOrder` are of the table.
 */
export class Section {
  constructor({ name, key, columns, actions = [], hint = true, empty = t(`${name}.empty`) }, { context, after, order = "", onOrder = text => this.order(text), end = [], above = [] }) {
    const actionColumn = {
      name: "",
      end: true,
      value: (row, now) => (offered(actions, row).length ? h("div", {}, offered(actions, row).map(action => actionButton(action, now, context, after))) : null),
    };
    this._key = key;
    this._table = new LiveTable(actions.length ? [...columns, actionColumn] : columns, `${name}.title`, onOrder);
    this._table.order(order);
    this._empty = h("div", { class: "empty", hidden: true }, empty);
    this._count = h("span", { class: "muted small" });
    const note = [hint ? h("span", { class: "muted small" }, t(`${name}.hint`)) : null, this._count];
    this._table.element.hidden = true;
    this.element = panel(name, t(`${name}.title`), { note, end }, above, this._empty, this._table.element);
  }

  order(text) {
    this._table.order(text);
  }

  /** Show rows; null: they are not known yet. */
  update(rows, count = "") {
    this._table.update(rows ?? [], this._key);
    this._table.element.hidden = !rows?.length;
    this._empty.hidden = rows === null || rows.length > 0;
    setText(this._count, count);
  }
}

/** A section whose rows are read page by page: the first page periodically, until the reader asks for more. */
class PagedSection extends Section {
  constructor({ path, rows, notes = () => [], whole = false, againMs = AGAIN_MS, ...spec }, query, { above = [], ...options }) {
    const problem = h("div", { role: "alert" });
    const around = h("div");
    super(spec, { ...options, above: [above, problem, around] });
    Object.assign(this, { _path: path, _rowsOf: rows, _notes: notes, _pages: !whole, _againMs: againMs, _query: query, _problem: problem, _above: around });
    this._rows = [];
    this._asked = 0;
    this._extended = false;
    this._calledOff = () => {};
    this._more = h("div", { class: "more-row", hidden: true }, h("button", { type: "button", on: { click: () => this._read(this._next) } }, t("load.more")));
    this.element.append(this._more);
    this._read();
  }

  close() {
    this._asked += 1;
    this._calledOff();
  }

  /** Read the first rows again, unless more are shown. */
  refresh() {
    if (!this._extended) this._read();
  }

  async _read(after = "") {
    this._calledOff();
    const mine = (this._asked += 1);
    const url = new URL(this._path(this._query), location.origin);
    if (after) url.searchParams.set("after", after);
    if (this._pages && !url.searchParams.has("limit")) url.searchParams.set("limit", PAGE);
    try {
      const answer = await call(url.pathname + url.search);
      if (mine !== this._asked) return;
      if (after) this._extended = true;
      this._rows = [...(after ? this._rows : []), ...this._rowsOf(answer, this._query)];
      this._next = answer.next ?? null;
      replace(this._problem);
      replace(this._above, this._notes(answer).map(([kind, text]) => h("p", { class: kind ? `notice ${kind}` : "muted small" }, text)));
      this.update(this._rows);
      this._more.hidden = this._next === null;
    } catch (problem) {
      if (mine !== this._asked) return;
      replace(this._problem, h("p", { class: "notice bad" }, explain(problem)));
    }
    if (!this._extended) this._calledOff = later(() => this._read(), this._againMs);
  }
}

/**
 * A resource: { name, sections } or, with `load`, one record of its: { name, load(id, query), draw(record, query) → { groups, sections },
 * follow(record, refresh) (a part that stays: { element, close() }) }.
 *
 * - section: that of Section, and { path(query), rows(answer, query), columns(query), filters, chips, buttons (actions on the query),
 *   notes(answer), whole (not in pages), againMs }. Its filters and chips are members of the address.
 * - filter: { name, label, options: [value, text()][] }, or a text with { type, show(value), parse(text), suggest(context) → [value, text][],
 *   open(text) → an address }.
 * - group: { name, title, needs (features), note, facts: [label, value][], notice, content, actions, filters }.
 */
export class ResourceView {
  constructor(resource, id, wanted, context) {
    this.name = resource.name;
    this.id = id;
    this._resource = resource;
    this._context = context;
    this._lists = [];
    this._newest = undefined;
    this._asked = 0;
    this._calledOff = () => {};
    this._problem = h("div", { role: "alert" });
    this._body = h("div", { class: "grid" });
    this.element = h("div", { class: "grid" }, id ? h("p", { class: "small" }, "← ", h("a", { href: `#/${this.name}` }, t(`${this.name}.back`))) : null, this._problem, this._body);
    this._query = wanted;
    this._show();
  }

  close() {
    this._asked += 1;
    this._calledOff();
    this._followed?.close();
    this._closeLists();
  }

  /** The address has changed. */
  use(query) {
    const [before, now] = [this._query, query].map(one => JSON.stringify({ ...Object.fromEntries(one), sort: "" }));
    this._query = query;
    if (before === now) for (const list of this._lists) list.order(query.get("sort") ?? "");
    else this._show();
  }

  _show() {
    this._shown = "";
    const focused = document.activeElement?.id;
    if (this._resource.load) this._load();
    else this._draw({ groups: [], sections: this._resource.sections });
    if (focused) byId(focused)?.focus();
  }

  /** A picture of the feed: each change by an operator has an entry in the audit log. */
  show(picture) {
    const news = this._newest !== undefined && picture.audit !== this._newest;
    this._newest = picture.audit;
    if (news) this._refresh();
  }

  async _load() {
    this._calledOff();
    const mine = (this._asked += 1);
    try {
      const record = await this._resource.load(this.id, this._query);
      if (mine !== this._asked) return;
      replace(this._problem);
      const shown = JSON.stringify(record);
      const held = this._body.contains(document.activeElement) ? document.activeElement : null;
      if (shown !== this._shown && !held?.matches("input, select")) {
        this._draw(this._resource.draw(record, this._query), record);
        if (held?.dataset.action) this._body.querySelector(`[data-action="${held.dataset.action}"]`)?.focus();
        this._shown = shown;
      }
      this._followed ??= this._resource.follow?.(record, () => this._load());
      if (this._followed) this.element.append(this._followed.element);
    } catch (problem) {
      if (mine !== this._asked) return;
      replace(this._problem, h("p", { class: "notice bad" }, explain(problem)));
      if (problem.status === 404) return;
    }
    this._calledOff = later(() => this._load(), AGAIN_MS);
  }

  _refresh() {
    if (this._resource.load) this._load();
    for (const list of this._lists) list.refresh();
  }

  _closeLists() {
    for (const list of this._lists) list.close();
  }

  _draw({ groups, sections }, record) {
    this._closeLists();
    this._lists = sections.map(section => this._section(section));
    replace(this._body, groups.filter(({ needs = [] }) => needs.every(enabled)).map(group => this._group(group, record)), this._lists.map(({ element }) => element));
  }

  _button(action, row) {
    return actionButton(action, () => row, this._context, () => this._refresh());
  }

  _group({ name, title = t(`${name}.title`), note, facts = [], notice, content = [], actions = [], filters = [] }, record) {
    const items = facts.filter(([, value]) => value !== "" && value !== null && value !== undefined && value !== false);
    return panel(
      name,
      title,
      { note, end: [...filters.map(filter => this._filter(filter)), ...offered(actions, record).map(action => this._button(action, record))] },
      notice ? h("p", { class: "notice" }, notice) : null,
      items.length ? h("dl", { class: "facts" }, items.map(([label, value]) => h("div", {}, h("dt", {}, t(label)), h("dd", { dataset: { fact: label } }, value)))) : null,
      items.length || content.length ? null : h("p", { class: "empty" }, t(`${name}.empty`)),
      content,
    );
  }

  _section({ columns, filters = [], chips = [], buttons = [], ...section }) {
    const query = this._query;
    const controls = filters.map(filter => this._filter(filter));
    const search = filters.length > MAX_IN_HEAD ? h("div", { class: "search", role: "search" }, filters.map(({ name, label = `col.${name}` }, at) => labelled(t(label), controls[at]))) : null;
    const end = [
      chips.filter(chip => query.get(chip)).map(chip => h("button", { type: "button", class: "tag", on: { click: () => this._go(chip, "") } }, `${t(`col.${chip}`)}: ${query.get(chip)} ✕`)),
      search ? [] : controls,
      offered(buttons, query).map(action => this._button(action, query)),
    ];
    const options = { context: this._context, after: () => this._refresh(), order: query.get("sort") ?? "", onOrder: order => this._go("sort", order), end, above: search ? [search] : [] };
    return new PagedSection({ ...section, columns: columns(query) }, query, options);
  }

  _filter({ name, label = `col.${name}`, options, type = "search", show = value => value, parse = text => text, suggest, open = () => null }) {
    const id = `filter-${name}`;
    const chosen = this._query.get(name) ?? "";
    const change = () => {
      const address = open(control.value.trim());
      if (address) location.hash = address;
      else this._go(name, parse(control.value.trim()));
    };
    const named = { id, "aria-label": t(label) };
    const control = options
      ? h("select", { ...named, on: { change } }, options.map(([value, text]) => h("option", { value, selected: value === chosen }, text())))
      : h("input", { ...named, type, placeholder: t(label), autocomplete: "off", spellcheck: "false", maxlength: 256, value: show(chosen), on: { change } });
    if (!suggest) return control;
    const list = h("datalist", { id: `${id}-list` });
    const fill = () => replace(list, suggest(this._context).map(([value, text]) => h("option", { value }, text)));
    control.setAttribute("list", list.id);
    control.addEventListener("focus", fill);
    control.append(list);
    return control;
  }

  /** Put a filter into the address. */
  _go(name, value) {
    const query = new URLSearchParams(this._query);
    if (value) query.set(name, value);
    else query.delete(name);
    location.hash = `#/${this.name}${this.id ? `/${this.id}` : ""}${query.size ? `?${query}` : ""}`;
  }
}
