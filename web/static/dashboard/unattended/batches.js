// Work that nobody waits for: everybody's batches, and the responses in the background.

import { call } from "../../common/api.js";
import { h } from "../../common/dom.js";
import { number } from "../../common/format.js";
import { t } from "../../common/i18n.js";
import { PagedTable } from "../../common/paged.js";
import { askAgain } from "../../common/page.js";
import { LiveTable, gauge, rowButton } from "../../common/table.js";
import { carryOut } from "../actions.js";
import { panel } from "../parts.js";
import { address, chip, owner, time, without } from "./cells.js";
import { Responses } from "./responses.js";

const PAGE = 50;
const SOON_MS = 2000;
const LATER_MS = 5000;
const UNENDED = "unended"; // as the call names all that have not ended
const STATES = ["", UNENDED, "validating", "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"];
const LINKED = ["user", "key"];
const under = row => row.endedAt === null;

export class Batches {
  /** `wanted`: URLSearchParams of the address: the `state`, `user` and `key` of what is shown. */
  constructor(wanted) {
    this._wanted = wanted;
    this._chips = h("span", { class: "actions chips" });
    const change = () => go(this._wanted, "state", this._state.value);
    this._state = h("select", { id: "batches-state", on: { change } });
    this._list = new PagedTable(
      batchTable(row => this._cancel(row)),
      {
        path: after => `/api/admin/batches?${new URLSearchParams({ limit: PAGE, ...this._filters(), after })}`,
        rowsOf: answer => answer.batches,
        keyOf: row => row.id,
        empty: "batches.empty",
        againMs: rows => (rows.some(under) ? SOON_MS : LATER_MS),
        onRows: () => this._drawFilters(),
      },
    );
    const choice = h("div", { class: "period" }, h("label", { for: "batches-state", class: "visually-hidden", dataset: { t: "batches.state" } }, t("batches.state")), this._state);
    this._responses = new Responses(wanted);
    this.element = h("div", { class: "grid" }, panel("batches", "batches.title", { hint: "batches.hint", end: [this._chips, choice] }, this._list.element), this._responses.element);
    this._drawFilters();
    this._list.read();
  }

  close() {
    this._list.close();
    this._responses.close();
  }

  /** Show others; the choices stay where they are. */
  use(wanted) {
    this._wanted = wanted;
    this._list.clear();
    this._drawFilters();
    this._list.read();
    this._responses.use(wanted);
  }

  show() {
    // nothing of it is in the feed
  }

  _filters() {
    return Object.fromEntries(["state", ...LINKED].filter(name => this._wanted.get(name)).map(name => [name, this._wanted.get(name)]));
  }

  _drawFilters() {
    const wanted = this._wanted.get("state") ?? "";
    this._state.replaceChildren(...STATES.map(state => h("option", { value: state, selected: state === wanted }, t(`batch.${state || "any"}`))));
    this._chips.replaceChildren(...LINKED.filter(name => this._wanted.get(name)).map(name => h("a", { class: "tag", href: address(without(this._wanted, name)) }, `${t(`batches.${name}`)}: ${this._wanted.get(name)} ✕`)));
  }

  async _cancel(row) {
    const sure = await askAgain({ title: t("batches.ask.cancel"), text: t("batches.ask.cancel.text", { user: row.user, id: row.id }), action: t("batches.do.cancel"), danger: true });
    if (!sure) return;
    await carryOut(
      async () => {
        await call(`/api/admin/batches/${row.id}/cancel`, { method: "POST", body: {} });
        return t("batches.done.cancel");
      },
      () => this._list.read(),
    );
  }
}

function go(wanted, name, value) {
  const query = without(wanted, name);
  if (value) query.set(name, value);
  location.hash = address(query);
}

/** What is wrong with a batch, and where; or what it waits for. */
function why({ error, errorLine, waitsFor = [] }) {
  if (error) return errorLine ? t("batches.error.line", { line: errorLine, error }) : error;
  return waitsFor.map(({ code, models }) => (code === "NOT_ITS_TURN" ? t("batches.turn") : t("batches.waits", { what: models.length ? `${code} (${models.join(", ")})` : code }))).join(" ");
}

const batchTable = cancel =>
  new LiveTable(
    [
      { name: "batches.batch", class: "wide", sign: row => row.id, draw: row => h("div", {}, h("span", { class: "id" }, row.id), h("span", { class: "sub" }, row.endpoint)) },
      { name: "batches.owner", sign: row => `${row.user}/${row.key}`, draw: owner },
      { name: "batches.model", sign: row => row.model ?? "", draw: row => h("span", { class: "who" }, row.model ?? "") },
      { name: "batches.state", sign: row => `${row.status}/${why(row)}`, draw: row => h("div", { class: "why" }, chip("batch", row.status), why(row) ? h("span", { class: "sub", title: why(row) }, why(row)) : null) },
      {
        name: "batches.progress",
        sign: row => JSON.stringify([row.counts, row.linesWaiting, row.linesRunning]),
        draw: ({ counts: { total, completed, failed }, linesWaiting, linesRunning }) => {
          if (!total) return null;
          const values = { done: number(completed + failed), total: number(total), failed: number(failed) };
          const done = gauge(t(failed ? "batches.counts.failed" : "batches.counts", values), (completed + failed) / total, { tone: failed === total ? "var(--bad)" : failed ? "var(--warn)" : null });
          const way = { waiting: number(linesWaiting), running: number(linesRunning) };
          return linesWaiting || linesRunning ? h("div", {}, done, h("span", { class: "sub" }, t("batches.under_way", way))) : done;
        },
      },
      { name: "batches.created", class: "num", sign: row => row.createdAt, draw: row => time(row.createdAt) },
      { name: "batches.until", class: "num", sign: row => `${row.endedAt}/${row.expiresAt}`, draw: row => (row.endedAt ? time(row.endedAt) : h("span", { class: "muted", title: t("batches.until.title") }, time(row.expiresAt))) },
      {
        name: "",
        class: "end",
        sign: row => String(under(row) && row.status !== "cancelling"),
        draw: (row, now) => (under(row) && row.status !== "cancelling" ? h("div", {}, rowButton("cancel-batch", t("action.cancel"), () => cancel(now()), { label: t("batches.cancel.label", { id: row.id }), danger: true })) : null),
      },
    ],
    "batches.title",
  );
