// Responses in the background, everybody's: each is a task of its own, with a page of its own.

import { h, replace } from "../../common/dom.js";
import { t } from "../../common/i18n.js";
import { PagedTable } from "../../common/paged.js";
import { LiveTable } from "../../common/table.js";
import { panel } from "../parts.js";
import { address, chip, owner, time, without } from "./cells.js";

const PAGE = 50;
const SOON_MS = 2000;
const LATER_MS = 5000;
const LINKED = ["user", "key"];
const CHOSEN = "response"; // in the address: their status; `state` is the batches'
const STATES = ["", "unfinished", "completed", "incomplete", "failed", "cancelled"];

export class Responses {
  /** `wanted`: URLSearchParams of the address: the `user`, `key` and `response` (status) of what is shown. */
  constructor(wanted) {
    this._wanted = wanted;
    this._list = new PagedTable(responseTable(), {
      path: after => `/api/admin/responses?${new URLSearchParams({ limit: PAGE, background: true, ...this._filters(), after })}`,
      rowsOf: answer => answer.responses,
      keyOf: row => row.id,
      empty: "responses.empty",
      onRows: () => this._drawState(),
      againMs: rows => (rows.some(({ endedAt }) => endedAt === null) ? SOON_MS : LATER_MS),
    });
    const change = () => {
      const query = without(this._wanted, CHOSEN);
      if (this._state.value) query.set(CHOSEN, this._state.value);
      location.hash = address(query);
    };
    this._state = h("select", { id: "responses-state", on: { change } });
    const choice = h("div", { class: "period" }, h("label", { for: "responses-state", class: "visually-hidden", dataset: { t: "responses.state" } }, t("responses.state")), this._state);
    this.element = panel("responses", "responses.title", { hint: "responses.hint", end: choice }, this._list.element);
    this._drawState();
    this._list.read();
  }

  close() {
    this._list.close();
  }

  use(wanted) {
    this._wanted = wanted;
    this._list.clear();
    this._drawState();
    this._list.read();
  }

  _drawState() {
    const wanted = this._wanted.get(CHOSEN) ?? "";
    replace(this._state, STATES.map(state => h("option", { value: state, selected: state === wanted }, t(`response.${state || "any"}`))));
  }

  _filters() {
    const found = LINKED.filter(name => this._wanted.get(name)).map(name => [name, this._wanted.get(name)]);
    return Object.fromEntries([...found, ["status", this._wanted.get(CHOSEN) ?? ""]]);
  }
}

const responseTable = () =>
  new LiveTable(
    [
      { name: "responses.response", class: "wide", sign: row => row.id, draw: row => h("a", { class: "id", href: `#/tasks/${row.taskId}` }, row.id) },
      { name: "batches.owner", sign: row => `${row.user}/${row.key}`, draw: owner },
      { name: "batches.model", sign: row => row.model, draw: row => h("span", { class: "who" }, row.model) },
      { name: "batches.state", sign: row => row.status, draw: row => chip("response", row.status) },
      { name: "batches.created", class: "num", sign: row => row.createdAt, draw: row => time(row.createdAt) },
      { name: "responses.ended", class: "num", sign: row => String(row.endedAt), draw: row => time(row.endedAt) },
      { name: "responses.expires", class: "num", sign: row => String(row.expiresAt), draw: row => time(row.expiresAt) },
    ],
    "responses.title",
  );
