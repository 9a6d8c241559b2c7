// How many calls were refused: by minute, key and code, the newest first.

import { h } from "../common/dom.js";
import { dateTime, number } from "../common/format.js";
import { PagedTable } from "../common/paged.js";
import { LiveTable } from "../common/table.js";
import { panel } from "./parts.js";

const PAGE = 50;
const AGAIN_MS = 30_000;

export class Refusals {
  constructor() {
    this._list = new PagedTable(refusalTable(), {
      path: after => `/api/admin/refusals?${new URLSearchParams({ limit: PAGE, after })}`,
      rowsOf: answer => answer.refusals,
      keyOf: row => `${row.minute} ${row.code} ${row.key}`,
      empty: "refusals.empty",
      againMs: AGAIN_MS,
    });
    this.element = panel("refusals", "refusals.title", { hint: "refusals.hint" }, this._list.element);
    this._list.read();
  }

  close() {
    this._list.close();
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
