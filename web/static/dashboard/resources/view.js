// One view for all kinds of records that operators list, filter, look at and change. resources.js describes each kind as data.

import { call, explain } from "../../common/api.js";
import { byId, h, later, replace } from "../../common/dom.js";
import { onLanguage, t } from "../../common/i18n.js";
import { PagedTable } from "../../common/paged.js";
import { copyButton, openDialog, toast } from "../../common/page.js";
import { LiveTable, rowButton } from "../../common/table.js";
import { actButton, choice, field, line, openForm, tick } from "../form.js";
import { panel } from "../parts.js";

const PAGE = 50;
const AGAIN_MS = 5000;

/**
 * A resource: { name, sections } or, with `load`, one record of its: { name, load(id, query), draw(record, query) → { groups, sections } }.
 *
 * - section: { name, path(query), rows(answer, query), key(row), columns(query), filters, chips, actions, buttons, notes(answer), whole (not in pages),
 *   againMs }.
 *   Its strings are `<name>.title`, `.hint` and `.empty`; its filters and chips are members of the address.
 * - column: { name, value(row) (text or element), num, wide, sort(row) }.
 * - filter: { name, options: [value, text][] } or, without options, a text.
 * - group: { name, facts: [label, value][], actions, filters }.
 * - action: { name, label, when(row), danger, title(row), text(row), fields(row, context), send(row, values, nonce) → [path, options],
 *   done(answer, row), run() }. With `run` it asks nothing. An answer with a `secret` is shown once.
 * - field of an action: { name, label, hint, value, options, type, parse }.
 *
 * `context`: { tiers(), refresh() }.
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
    this.element = h("div", { class: "grid" }, id ? h("p", { class: "small" }, "← ", h("a", { href: `#/${this.name}`, dataset: { t: `${this.name}.back` } }, t(`${this.name}.back`))) : null, this._problem, this._body);
    this._forget = onLanguage(() => this.use(this._query));
    this.use(wanted);
  }

  close() {
    this._asked += 1;
    this._calledOff();
    this._forget();
    this._closeLists();
  }

  /** The address has changed. */
  use(query) {
    this._query = query;
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
      const writing = this._body.contains(document.activeElement) && document.activeElement.matches("input, select");
      if (shown !== this._shown && !writing) this._draw(this._resource.draw(record, this._query), record);
      if (!writing) this._shown = shown;
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
    this._lists = [];
  }

  _draw({ groups, sections }, record) {
    this._closeLists();
    replace(this._body, groups.map(group => this._group(group, record)), sections.map(section => this._section(section)));
  }

  _group({ name, facts, notice, actions = [], filters = [] }, record) {
    const buttons = actions.filter(action => !action.when || action.when(record)).map(action => actButton(action.name, action.label, () => this._ask(action, record), action.danger ? "danger" : ""));
    const items = facts.filter(([, value]) => value !== "" && value !== null && value !== undefined && value !== false);
    return panel(
      name,
      `${name}.title`,
      { end: [...filters.map(filter => this._filter(filter)), ...buttons] },
      notice ? h("p", { class: "notice" }, notice) : null,
      items.length ? h("dl", { class: "facts" }, items.map(([label, value]) => h("div", {}, h("dt", {}, t(label)), h("dd", { dataset: { fact: label } }, value)))) : h("p", { class: "empty" }, t(`${name}.empty`)),
    );
  }

  _section(section) {
    const { name, rows, key, filters = [], chips = [], actions = [], buttons = [], notes = () => [], whole = false, againMs = AGAIN_MS } = section;
    const query = this._query;
    const columns = section.columns(query).map(({ name: label, value, num, wide, sort }) => ({
      name: label,
      class: num ? "num" : wide ? "wide" : null,
      sign: row => (value(row) instanceof Node ? value(row).outerHTML : value(row)),
      draw: row => value(row),
      sort,
    }));
    if (actions.length) columns.push(this._actionColumn(actions));
    const above = h("div");
    const list = new PagedTable(new LiveTable(columns, `${name}.title`), {
      path: after => {
        const url = new URL(section.path(query), location.origin);
        if (after) url.searchParams.set("after", after);
        if (!whole && !url.searchParams.has("limit")) url.searchParams.set("limit", PAGE);
        return url.pathname + url.search;
      },
      rowsOf: answer => {
        replace(above, notes(answer).map(([kind, text]) => h("p", { class: kind ? `notice ${kind}` : "muted small" }, text)));
        return rows(answer, query);
      },
      keyOf: key,
      nextOf: answer => answer.next ?? null,
      empty: `${name}.empty`,
      againMs,
    });
    this._lists.push(list);
    list.read();
    const end = [
      chips.filter(chip => query.get(chip)).map(chip => h("button", { type: "button", class: "tag", on: { click: () => this._go(chip, "") } }, `${t(`col.${chip}`)}: ${query.get(chip)} ✕`)),
      filters.map(filter => this._filter(filter)),
      buttons.map(action => h("button", { type: "button", class: action.run ? "small" : "primary small", dataset: action.run ? {} : { action: action.name }, on: { click: () => (action.run ? this._run(action) : this._ask(action, null)) } }, t(action.label))),
    ];
    return panel(name, `${name}.title`, { hint: `${name}.hint`, end }, above, list.element);
  }

  _actionColumn(actions) {
    const shown = row => actions.filter(({ when }) => !when || when(row));
    return {
      name: "",
      class: "end",
      sign: row => shown(row).map(({ name }) => name).join(),
      draw: (row, now) => h("div", {}, shown(row).map(action => rowButton(action.name, t(action.label), () => this._ask(action, now()), { label: action.title(row), danger: action.danger }))),
    };
  }

  _filter({ name, label = `col.${name}`, options }) {
    const id = `filter-${name}`;
    const chosen = this._query.get(name) ?? "";
    const change = () => this._go(name, control.value.trim());
    const control = options
      ? h("select", { id, "aria-label": t(label), on: { change } }, options.map(([value, text]) => h("option", { value, selected: value === chosen }, text())))
      : h("input", { id, type: "search", "aria-label": t(label), placeholder: t(label), autocomplete: "off", spellcheck: "false", maxlength: 256, value: chosen, on: { change } });
    return control;
  }

  /** Put a filter into the address. */
  _go(name, value) {
    const query = new URLSearchParams(this._query);
    if (value) query.set(name, value);
    else query.delete(name);
    location.hash = `#/${this.name}${this.id ? `/${this.id}` : ""}${query.size ? `?${query}` : ""}`;
  }

  async _run(action) {
    try {
      await action.run(this._query);
    } catch (problem) {
      toast(explain(problem), "bad");
    }
  }

  /** Ask with a form, do it, and report how it went. */
  _ask(action, row) {
    const nonce = crypto.randomUUID(); // one per form, so that a repeated click does it once
    const parts = (action.fields?.(row, this._context) ?? []).map(spec => ({ spec, ...this._field(spec) }));
    openForm({
      title: action.title(row),
      content: [action.text ? h("p", {}, action.text(row)) : null, h("div", { class: "settings" }, parts.map(part => part.element))],
      fields: parts,
      action: t(action.label),
      danger: action.danger,
      work: async () => {
        const values = Object.fromEntries(parts.map(({ spec, control }) => [spec.name, spec.type === "checkbox" ? control.checked : (spec.parse ?? (text => text || null))(control.value.trim())]));
        const [path, options] = action.send(row, values, nonce);
        const answer = await call(path, { method: "POST", ...options });
        if (answer.secret) showSecret(answer, this._context.refresh);
        else toast([action.done(answer, row), ...(answer.notes ?? [])].join(" "), "good");
        this._refresh();
      },
    });
    parts[0]?.control.focus();
  }

  _field({ name, label = `col.${name}`, hint, value = "", options, type = "text" }) {
    const id = `field-${name}`;
    const control = options
      ? choice(id, options, value)
      : type === "checkbox"
        ? tick(id, Boolean(value))
        : type === "lines"
          ? h("textarea", { id, rows: 3, spellcheck: "false" })
          : line(id, { type, value, maxlength: 500 });
    return field(name, control, t(label), hint ? t(hint) : "");
  }
}

/** Show a secret, this once. `after` is called when it was noted. */
function showSecret({ id, secret, notes }, after) {
  const done = h("button", { type: "button", class: "primary", on: { click: () => dialog.close() } }, t("secret.noted"));
  const dialog = openDialog(
    t("secret.title", { id }),
    h(
      "div",
      {},
      h("p", { class: "notice warn" }, t("secret.once")),
      h("p", { class: "secret-row" }, h("code", { id: "new-secret", class: "secret" }, secret), copyButton(() => secret, t("secret.copy"))),
      notes.map(note => h("p", { class: "notice" }, note)),
      h("div", { class: "actions" }, done),
    ),
    after,
  );
  dialog.addEventListener("cancel", event => event.preventDefault()); // Escape would lose it
}
