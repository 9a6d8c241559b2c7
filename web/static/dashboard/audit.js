// What operators changed and did, and below it which calls were refused.

import { call, explain } from "../common/api.js";
import { h, replace } from "../common/dom.js";
import { dateTime } from "../common/format.js";
import { onLanguage, t } from "../common/i18n.js";
import { LiveTable } from "../common/table.js";
import { settingName, valueText } from "./actions.js";
import { panel } from "./parts.js";
import { Refusals } from "./refusals.js";

const PAGE = 50;
const OPEN = "(open)";

export class Audit {
  /** `wanted`: URLSearchParams of the address: a `target` shows only what was done to it. */
  constructor(wanted) {
    this._target = wanted.get("target") ?? "";
    this._entries = [];
    this._next = null;
    this._newest = undefined;
    this._failed = false;
    this._reading = false;
    this._stopped = false;
    this._problem = h("div", { role: "alert" });
    this._empty = h("p", { class: "empty", hidden: true, dataset: { t: "audit.empty" } }, t("audit.empty"));
    this._more = h("button", { type: "button", hidden: true, dataset: { t: "load.more" }, on: { click: () => this._read(this._next) } }, t("load.more"));
    this._table = auditTable();
    this._refusals = new Refusals();
    const acts = panel("audit", "audit.title", { hint: "audit.hint" }, this._problem, this._chips(), this._empty, this._table.element, h("div", { class: "more-row" }, this._more));
    this.element = h("div", { class: "grid" }, acts, this._refusals.element);
    this._forget = onLanguage(() => this._draw());
    this._read();
  }

  close() {
    this._stopped = true;
    this._forget();
    this._table.close();
    this._refusals.close();
  }

  /** A picture of the feed says which entry is the newest; what could not be read is read as soon as the database is back. */
  show(picture) {
    const news = picture.audit !== this._newest;
    this._newest = picture.audit;
    if (this._stopped || this._reading) this._failed ||= news;
    else if (news || (this._failed && picture.database.up)) this._read();
  }

  /** What the list is of, to be given up. */
  _chips() {
    return this._target ? h("div", { class: "actions chips" }, h("a", { class: "tag", href: "#/audit" }, `${this._target} ✕`)) : [];
  }

  /** Read the newest entries, or those behind `after`. */
  async _read(after = null) {
    if (this._reading) return;
    this._reading = this._more.disabled = true;
    this._failed = false;
    try {
      const answer = await call(`/api/admin/audit?${new URLSearchParams({ limit: PAGE, ...(this._target ? { target: this._target } : {}), ...(after ? { after } : {}) })}`);
      if (this._stopped) return;
      if (after) {
        this._entries = [...this._entries, ...answer.entries];
        this._next = answer.next;
      } else this._begin(answer);
      replace(this._problem);
      this._draw();
    } catch (problem) {
      this._failed = true;
      if (!this._stopped) replace(this._problem, h("p", { class: "notice bad" }, explain(problem)));
    } finally {
      this._reading = this._more.disabled = false;
    }
  }

  /** Put new entries before those that are there, unless so many are new that some lie between. */
  _begin({ entries, next }) {
    const old = entries.findIndex(entry => entry.id === this._entries[0]?.id);
    if (old < 0) {
      this._entries = entries;
      this._next = next;
    } else this._entries = [...entries.slice(0, old), ...this._entries];
  }

  _draw() {
    this._table.update(this._entries, entry => entry.id);
    this._table.element.hidden = this._entries.length === 0;
    this._empty.hidden = this._entries.length > 0;
    this._more.hidden = this._next === null;
  }
}

const DONE = { set: "set", change: "set", cancel: "cancel", drain: "drain", force: "force", create: "create", rotate: "rotate", revoke: "revoke", forget: "forget", grant: "grant", update: "set", promote: "promote", rollback: "rollback", end: "end" };
const known = action => (action in DONE ? t(`audit.${DONE[action]}`) : action);

function target(entry) {
  const [kind, ...rest] = entry.target.split(" ");
  const name = rest.join(" ");
  if (kind === "task") return h("a", { class: "id", href: `#/tasks/${name}` }, name);
  if (kind === "override") return h("a", { class: "id", href: "#/overrides" }, name);
  return h("span", { class: "who" }, h("small", {}, kind), h("b", {}, entry.before?.name || name));
}

function changes(entry) {
  return Object.keys(entry.after)
    .map(name => [settingName(name), valueText(entry.before[name]), valueText(entry.after[name])])
    .filter(([, before, after]) => before !== after) // a limit that was taken back and had not been changed
    .map(([name, before, after]) => h("div", { class: "change" }, `${name} `, h("code", {}, before), " → ", h("code", {}, after)));
}

const auditTable = () =>
  new LiveTable(
    [
      { name: "audit.at", sign: row => dateTime(row.at) },
      { name: "audit.who", sign: row => (row.who === OPEN ? t("audit.open") : row.who), draw: row => h("span", { class: "who" }, row.who === OPEN ? t("audit.open") : row.who) },
      { name: "audit.from", sign: row => row.from || "–" },
      { name: "audit.action", sign: row => known(row.action) },
      { name: "audit.target", sign: row => row.target, draw: target },
      { name: "audit.change", class: "wide", sign: row => row.id, draw: row => h("div", {}, changes(row)) },
    ],
    "audit.title",
  );
