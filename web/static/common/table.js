// Tables that are updated every second without moving under the reader: rows are known by a key, cells change when their
// content does, and what has the focus keeps it.

import { h, replace } from "./dom.js";
import { t } from "./i18n.js";

/** A bar. `share` 0…1; `tone` a CSS colour. The text next to it has the value. */
export function meter(share, { tone = null } = {}) {
  const fill = h("i");
  fill.style.width = `${Math.min(Math.max(share, 0), 1) * 100}%`;
  if (tone) fill.style.setProperty("--tone", tone);
  return h("span", { class: "meter", "aria-hidden": "true" }, fill);
}

/** A text with a bar under it. */
export const gauge = (text, share, options) => h("span", { class: "gauge" }, h("span", {}, text), meter(share, options));

/** A table that stays as it is. `heads`: strings' keys; `rows`: elements. */
export const plainTable = (heads, rows, attributes = {}) =>
  h("table", attributes, h("thead", {}, h("tr", {}, heads.map(key => h("th", { scope: "col" }, t(key))))), h("tbody", {}, rows));

/**
 * `columns`: { name (a string's key, "" for none), value(row, now) (text or nodes), num, wide, end, sort(row) }. `now()` is the row as it is
 * by then, for what a click does later. With `sort(row)`, a number or text, the reader may order the rows by the column: `onOrder` is
 * called with the other order, as `order` takes it. The first column heads its row. `caption` names the table.
 */
export class LiveTable {
  constructor(columns, caption, onOrder = () => {}) {
    this._columns = columns.map(column => ({ ...column, class: ["num", "wide", "end"].find(name => column[name]) ?? null }));
    this._onOrder = onOrder;
    this._sort = null; // { column, falling }
    this._shown = [];
    this._rows = new Map();
    this._body = h("tbody", { role: "rowgroup" });
    this._head = h("thead", { role: "rowgroup" });
    this.element = h("div", { class: "table-wrap" }, h("table", { class: "live-table", role: "table", "aria-label": t(caption) }, this._head, this._body));
    this._drawHead();
  }

  /** Order the rows by a column's name, with "-" before it the largest first; "": as they come. */
  order(text) {
    const column = this._columns.find(({ name, sort }) => sort && name === text.replace("-", ""));
    this._sort = column ? { column, falling: text.startsWith("-") } : null;
    const held = this._head.contains(document.activeElement) ? document.activeElement.dataset.sort : null;
    this._drawHead();
    if (held) this._head.querySelector(`[data-sort="${held}"]`).focus();
    if (this._keyOf) this.update(this._shown, this._keyOf);
  }

  _choose(column) {
    const falling = this._sort?.column !== column; // the largest first, then the smallest, then as they come
    this._onOrder(falling ? `-${column.name}` : this._sort.falling ? column.name : "");
  }

  _ordered(rows) {
    if (!this._sort) return rows;
    const { column, falling } = this._sort;
    const compare = (a, b) => (a === b ? 0 : a === null ? 1 : b === null ? -1 : (a < b ? -1 : 1) * (falling ? -1 : 1)); // what is unknown last
    return rows.toSorted((a, b) => compare(column.sort(a), column.sort(b)));
  }

  /** Show these rows, in this order or the one that the reader chose. */
  update(rows, keyOf) {
    this._shown = rows;
    this._keyOf = keyOf;
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
      for (const [index, column] of this._columns.entries()) show(entry.element.children[index], column.value(row, () => entry.row));
      if (entry.element === before) before = before.nextSibling;
      else this._body.insertBefore(entry.element, before);
    }
  }

  _make(key) {
    const cells = this._columns.map((column, index) => {
      const named = { class: column.class, "data-label": column.name ? t(column.name) : null };
      return index === 0 ? h("th", { scope: "row", role: "rowheader", ...named }) : h("td", { role: "cell", ...named });
    });
    const entry = { element: h("tr", { role: "row", dataset: { key } }, cells) };
    this._rows.set(key, entry);
    return entry;
  }

  _drawHead() {
    const cells = this._columns.map(column => {
      const direction = this._sort?.column === column ? (this._sort.falling ? "descending" : "ascending") : null;
      const text = column.name ? t(column.name) : h("span", { class: "visually-hidden" }, t("table.actions"));
      const arrow = { ascending: " ↑", descending: " ↓" }[direction];
      const head = column.sort ? h("button", { type: "button", class: "sort", dataset: { sort: column.name }, on: { click: () => this._choose(column) } }, text, arrow) : text;
      return h("th", { scope: "col", role: "columnheader", class: column.class, "aria-sort": direction }, head);
    });
    replace(this._head, h("tr", { role: "row" }, cells));
  }
}

/** Put a value into a cell, unless it shows the same already. */
function show(cell, value) {
  const [fresh, old] = [[...h("td", {}, value).childNodes], cell.childNodes];
  if (fresh.length === old.length && fresh.every((node, at) => node.isEqualNode(old[at]))) return;
  const held = cell.contains(document.activeElement) ? document.activeElement : null;
  cell.replaceChildren(...fresh);
  if (held) (cell.querySelector(`[data-action="${held.dataset.action}"]`) ?? cell.querySelector("button, a"))?.focus();
}
