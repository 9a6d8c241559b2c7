// A list that a call gives page by page.

import { call, explain } from "./api.js";
import { h, later, replace } from "./dom.js";
import { onLanguage, t } from "./i18n.js";

/**
 * A LiveTable that is read page by page. `path(after)`: the path of the rows after `after`, "" the first ones; `rowsOf(answer)` and
 * `keyOf(row)`: the rows and their keys; `nextOf(answer)`: the cursor of the next page or null; `empty`: the key of the text without
 * rows; `headers()`: those of the calls. With `againMs`, or `againMs(rows)`, the first page is read periodically until the reader
 * asks for more. `onRows(rows)` is called with the rows shown.
 */
export class PagedTable {
  constructor(table, { path, rowsOf, keyOf, nextOf = answer => answer.next, empty, headers = () => ({}), againMs = 0, onRows = () => {} }) {
    Object.assign(this, { _table: table, _path: path, _rowsOf: rowsOf, _keyOf: keyOf, _nextOf: nextOf, _headers: headers, _onRows: onRows });
    this._againMs = typeof againMs === "function" ? againMs : () => againMs;
    this._rows = [];
    this._next = null;
    this._asked = 0;
    this._stopped = false;
    this._calledOff = () => {};
    this._problem = h("div", { role: "alert" });
    this._empty = h("p", { class: "empty", hidden: true, dataset: { t: empty } }, t(empty));
    this._more = h("button", { type: "button", dataset: { t: "load.more" }, on: { click: () => this.read(this._next) } }, t("load.more"));
    this._moreRow = h("div", { class: "more-row", hidden: true }, this._more);
    table.element.hidden = true;
    this.element = h("div", {}, this._problem, this._empty, table.element, this._moreRow);
    this._forget = onLanguage(() => this._draw());
  }

  close() {
    this._stopped = true;
    this._calledOff();
    this._forget();
    this._table.close();
  }

  /** Read the first rows again, or those behind `after`. */
  async read(after = "") {
    this._calledOff();
    const mine = (this._asked += 1);
    const over = () => this._stopped || mine !== this._asked;
    const whole = this._whole;
    if (after) this._whole = false; // no refresh may come before the answer: it would take the place of what was asked for
    try {
      const answer = await call(this._path(after), { headers: this._headers() });
      if (over()) return;
      this._rows = after ? [...this._rows, ...this._rowsOf(answer)] : this._rowsOf(answer);
      this._next = this._nextOf(answer);
      this._whole = !after;
      replace(this._problem);
      this._draw();
    } catch (problem) {
      if (over()) return;
      this._whole = whole;
      replace(this._problem, h("p", { class: "notice bad" }, explain(problem)));
    }
    const againMs = this._againMs(this._rows);
    if (againMs && this._whole !== false) this._calledOff = later(() => this.read(), againMs);
  }

  /** Read the first rows again, unless more are shown. */
  async refresh() {
    if (this._whole !== false) await this.read();
  }

  /** Forget what is shown: it is of something else. */
  clear() {
    this._calledOff();
    this._asked += 1;
    this._rows = [];
    this._next = null;
    this._whole = undefined;
    replace(this._problem);
    this._draw();
    this._empty.hidden = true;
  }

  _draw() {
    this._table.update(this._rows, this._keyOf);
    this._table.element.hidden = this._rows.length === 0;
    this._empty.hidden = this._whole === undefined || this._rows.length > 0;
    this._moreRow.hidden = this._next === null;
    this._onRows(this._rows);
  }
}
