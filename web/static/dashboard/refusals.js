// How many calls were refused: by minute, key and code, the newest first.

import { call, explain } from "../common/api.js";
import { h, later, replace } from "../common/dom.js";
import { dateTime, number } from "../common/format.js";
import { onLanguage, t } from "../common/i18n.js";
import { LiveTable } from "./table.js";

const PAGE = 50;
const AGAIN_MS = 30_000;

export class Refusals {
  constructor() {
    this._rows = [];
    this._next = null;
    this._asked = 0;
    this._stopped = false;
    this._calledOff = () => {};
    this._problem = h("div", { role: "alert" });
    this._empty = h("p", { class: "empty", hidden: true, dataset: { t: "refusals.empty" } }, t("refusals.empty"));
    this._more = h("button", { type: "button", hidden: true, dataset: { t: "load.more" }, on: { click: () => this._read(this._next) } }, t("load.more"));
    this._table = refusalTable();
    this.element = h(
      "section",
      { class: "panel", id: "refusals", "aria-labelledby": "refusals-title" },
      h("div", { class: "panel-head" }, h("h2", { id: "refusals-title", dataset: { t: "refusals.title" } }, t("refusals.title")), h("span", { class: "muted small", dataset: { t: "refusals.hint" } }, t("refusals.hint"))),
      this._problem,
      this._empty,
      this._table.element,
      h("div", { class: "more-row" }, this._more),
    );
    this._forget = onLanguage(() => this._draw());
    this._read();
  }

  close() {
    this._stopped = true;
    this._calledOff();
    this._forget();
    this._table.close();
  }

  /** Read the newest minutes, or those behind `after`; as long as nobody asked for more, the newest again and again. */
  async _read(after = "") {
    this._calledOff();
    const mine = (this._asked += 1);
    try {
      const answer = await call(`/api/admin/refusals?${new URLSearchParams({ limit: PAGE, after })}`);
      if (this._stopped || mine !== this._asked) return;
      this._rows = after ? [...this._rows, ...answer.refusals] : answer.refusals;
      this._next = answer.next;
      replace(this._problem);
      this._draw();
    } catch (problem) {
      if (this._stopped || mine !== this._asked) return;
      replace(this._problem, h("p", { class: "notice bad" }, explain(problem)));
    }
    if (this._rows.length <= PAGE) this._calledOff = later(() => this._read(), AGAIN_MS);
  }

  _draw() {
    this._table.update(this._rows, row => `${row.minute} ${row.code} ${row.key}`);
    this._table.element.hidden = this._rows.length === 0;
    this._empty.hidden = this._rows.length > 0;
    this._more.hidden = this._next === null;
  }
}

const refusalTable = () =>
  new LiveTable(
    [
      { name: "refusals.minute", sign: row => dateTime(row.minute) },
      { name: "refusals.key", sign: row => row.key || "–", draw: row => h("span", { class: "who" }, row.key || "–") },
      { name: "refusals.code", sign: row => row.code, draw: row => h("code", {}, row.code) },
      { name: "refusals.count", class: "num", sign: row => number(row.count) },
    ],
    "refusals.title",
  );
