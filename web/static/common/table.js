// Tables that are updated every second without moving under the reader: rows are known by a key, cells change when their
// content does, and what has the focus keeps it.

import { h, replace, setText } from "./dom.js";
import { onLanguage, t } from "./i18n.js";

/** A bar. `share` 0…1; `tone` a CSS colour. The text next to it has the value. */
export function meter(share, { tone = null } = {}) {
  const fill = h("i");
  fill.style.width = `${Math.min(Math.max(share, 0), 1) * 100}%`;
  if (tone) fill.style.setProperty("--tone", tone);
  return h("span", { class: "meter", "aria-hidden": "true" }, fill);
}

/** A text with a bar under it. */
export const gauge = (text, share, options) => h("span", { class: "gauge" }, h("span", {}, text), meter(share, options));

/**
 * `columns`: { name (a string's key, "" for none), class, sign(row), draw(row) }. `sign` is a text that changes when the cell
 * must be drawn again; without `draw` it is what the cell shows. With `sort(row)`, a number or text, the reader may order the rows by it. `draw` also gets a function that returns what the row is by
 * then, for what a click does later. The first column heads its row. `caption` names the table.
 */
export class LiveTable {
  constructor(columns, caption, onOrder = () => {}) {
    this._onOrder = onOrder; // called with another order, as `order` takes it
    this._sort = null; // { column, falling }
    this._columns = columns;
    this._caption = caption;
    this._rows = new Map();
    this._body = h("tbody", { role: "rowgroup" });
    this._head = h("thead", { role: "rowgroup" });
    this._table = h("table", { class: "live-table", role: "table" }, this._head, this._body);
    this.element = h("div", { class: "table-wrap" }, this._table);
    this._drawHead();
    this._forget = onLanguage(() => this._redraw());
  }

  /** To be called when the table is shown no more. */
  close() {
    this._forget();
  }

  /** Order the rows by a column's name, with "-" before it the largest first; "": as they come. */
  order(text) {
    const column = this._columns.find(({ name, sort }) => sort && name === text.replace("-", ""));
    const falling = text.startsWith("-");
    if (column === this._sort?.column && (!column || falling === this._sort.falling)) return;
    this._sort = column ? { column, falling } : null;
    const held = this._head.contains(document.activeElement) ? document.activeElement.dataset.sort : null;
    this._drawHead();
    if (held) this._head.querySelector(`[data-sort="${held}"]`).focus();
    if (this._shown) this.update(...this._shown);
  }

  _choose(column) {
    const falling = this._sort?.column !== column; // the largest first, then the smallest, then as they come
    const next = falling ? `-${column.name}` : this._sort.falling ? column.name : "";
    this.order(next);
    this._onOrder(next);
  }

  _ordered(rows) {
    if (!this._sort) return rows;
    const { column, falling } = this._sort;
    const compare = (a, b) => (a === b ? 0 : a === null ? 1 : b === null ? -1 : (a < b ? -1 : 1) * (falling ? -1 : 1)); // what is unknown last
    return [...rows].sort((a, b) => compare(column.sort(a), column.sort(b)));
  }

  /** Show these rows, in this order or the one that the reader chose. */
  update(rows, keyOf) {
    this._shown = [rows, keyOf];
    const wanted = new Map(this._ordered(rows).map(row => [String(keyOf(row)), row]));
    for (const [key, entry] of this._rows) {
      if (wanted.has(key)) continue;
      entry.element.remove(); // first: the others need not be moved then, which would cost them the focus
      this._rows.delete(key);
    }
    let before = this._body.firstChild;
    for (const [key, row] of wanted) {
      const entry = this._rows.get(key) ?? this._make(key);
      entry.row = row;
      for (const [index, column] of this._columns.entries()) this._cell(entry, index, column, row);
      if (entry.element === before) before = before.nextSibling;
      else this._body.insertBefore(entry.element, before);
    }
  }

  _make(key) {
    const cells = this._columns.map((column, index) => {
      const named = { class: column.class ?? null, "data-label": column.name ? t(column.name) : null };
      return index === 0
        ? h("th", { scope: "row", role: "rowheader", ...named })
        : h("td", { role: "cell", ...named });
    });
    const entry = { element: h("tr", { role: "row", dataset: { key } }, cells), cells, signs: [] };
    this._rows.set(key, entry);
    return entry;
  }

  _cell(entry, index, column, row) {
    const sign = String(column.sign(row));
    if (entry.signs[index] === sign) return;
    entry.signs[index] = sign;
    const cell = entry.cells[index];
    if (!column.draw) {
      setText(cell, sign);
      return;
    }
    const held = cell.contains(document.activeElement) ? document.activeElement : null;
    replace(cell, column.draw(row, () => entry.row));
    if (held) (cell.querySelector(`[data-action="${held.dataset.action}"]`) ?? cell.querySelector("button, a"))?.focus();
  }

  _drawHead() {
    this._table.setAttribute("aria-label", t(this._caption));
    const cells = this._columns.map(column => {
      const chosen = this._sort?.column === column;
      const text = column.name ? t(column.name) : h("span", { class: "visually-hidden" }, t("table.actions"));
      const head = column.sort ? h("button", { type: "button", class: "sort", dataset: { sort: column.name }, on: { click: () => this._choose(column) } }, text, chosen ? (this._sort.falling ? " ↓" : " ↑") : null) : text;
      return h("th", { scope: "col", role: "columnheader", class: column.class ?? null, "aria-sort": chosen ? (this._sort.falling ? "descending" : "ascending") : null }, head);
    });
    replace(this._head, h("tr", { role: "row" }, cells));
  }

  _redraw() {
    this._drawHead();
    for (const entry of this._rows.values()) entry.element.remove();
    this._rows.clear();
    if (this._shown) this.update(...this._shown);
  }
}

/** A small button that does something with a row. `action` names it for tests and for the focus. */
export const rowButton = (action, text, work, { label = null, danger = false, disabled = false } = {}) =>
  h(
    "button",
    {
      type: "button",
      class: danger ? "small danger" : "small",
      dataset: { action },
      "aria-label": label,
      disabled,
      on: { click: work },
    },
    text,
  );
