// What one webhook has told and is to tell, with every try of it; and telling it again.

import { call, explain } from "../../common/api.js";
import { byId, h, replace } from "../../common/dom.js";
import { dateTime, duration, number, when } from "../../common/format.js";
import { t } from "../../common/i18n.js";
import { PagedTable } from "../../common/paged.js";
import { copyButton, openDialog, toast } from "../../common/page.js";
import { LiveTable, rowButton } from "../../common/table.js";
import { nameOf } from "./events.js";

const PAGE = 20;
const SOON_MS = 1500;
const LATER_MS = 10_000;
const STATES = ["", "waiting", "delivered", "failed"];

export class Deliveries {
  /** `who()`: the headers of the caller. `onSent()`: something is sent that had not been. */
  constructor(element, { who, onSent }) {
    Object.assign(this, { _element: element, _who: who, _onSent: onSent });
    this._hook = null;
    this._state = "";
    this._table = null;
  }

  /** The webhook whose deliveries are shown; null for none. */
  get shown() {
    return this._hook;
  }

  /** Show those of this webhook, from its newest on. */
  open(hook) {
    this.close();
    this._hook = hook;
    this._table = new PagedTable(this._rows(), {
      path: after => `/api/webhooks/${hook.id}/deliveries?${new URLSearchParams({ limit: PAGE, ...(this._state ? { state: this._state } : {}), after })}`,
      rowsOf: answer => answer.deliveries,
      keyOf: row => row.id,
      empty: "deliveries.empty",
      headers: this._who,
      againMs: rows => (rows.some(({ nextAt }) => nextAt !== null && nextAt - Date.now() < LATER_MS) ? SOON_MS : LATER_MS),
    });
    this.draw();
    this._table.read();
  }

  close() {
    this._table?.close();
    this._table = null;
    this._hook = null;
    this._element.hidden = true;
    replace(this._element);
  }

  refresh() {
    this._table?.refresh();
  }

  draw() {
    if (this._table === null) return;
    const change = event => {
      this._state = event.target.value;
      this._table.clear();
      this._table.read();
    };
    const states = STATES.map(state => h("option", { value: state, selected: state === this._state }, t(`deliveries.state.${state || "any"}`)));
    const closed = () => {
      const { id } = this._hook;
      this.close();
      document.querySelector(`#webhooks [data-key="${id}"] [data-action=deliveries]`)?.focus();
    };
    this._element.hidden = false;
    replace(
      this._element,
      h(
        "div",
        { class: "panel-head" },
        h("h2", { id: "deliveries-title", tabindex: -1 }, t("deliveries.title")),
        h("span", { class: "muted small name" }, nameOf(this._hook.url)),
        h("div", { class: "end" }, h("select", { id: "deliveries-state", "aria-label": t("deliveries.state"), on: { change } }, states), h("button", { type: "button", class: "quiet", id: "deliveries-close", on: { click: closed } }, t("close"))),
      ),
      this._table.element,
    );
  }

  async _again(delivery) {
    try {
      await call(`/api/webhooks/${this._hook.id}/deliveries/${delivery.id}/redeliver`, { method: "POST", headers: this._who() });
      toast(t("deliveries.again.done"), "good");
      this._onSent();
    } catch (problem) {
      toast(explain(problem), "bad");
    }
    this._table?.read();
  }

  async _tries(delivery) {
    let tries;
    try {
      ({ tries } = await call(`/api/webhooks/${this._hook.id}/deliveries/${delivery.id}`, { headers: this._who() }));
    } catch (problem) {
      toast(explain(problem), "bad");
      return;
    }
    const head = ["at", "took", "status", "error"].map(name => h("th", { scope: "col", class: name === "took" || name === "status" ? "num" : null }, t(`tries.${name}`)));
    const rows = tries.map(one =>
      h("tr", {}, h("th", { scope: "row" }, dateTime(one.at)), h("td", { class: "num" }, duration(one.tookMs)), h("td", { class: "num" }, one.status ?? "–"), h("td", { class: one.error ? "text bad" : "text" }, one.error || t("tries.taken"))),
    );
    const told = delivery.attempts > tries.length ? t("tries.last", { n: number(tries.length), all: number(delivery.attempts) }) : null;
    const dialog = openDialog(
      t("tries.title", { event: delivery.event }),
      h(
        "div",
        { class: "results" },
        h("p", { class: "hint" }, t("tries.id"), " ", h("code", {}, delivery.id), copyButton(() => delivery.id, t("tries.copy"))),
        told ? h("p", { class: "hint" }, told) : null,
        tries.length
          ? h("div", { class: "table-wrap", tabindex: 0, role: "region", "aria-label": t("tries.label") }, h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows)))
          : h("p", { class: "empty" }, t("tries.none")),
        h("div", { class: "actions" }, h("button", { type: "button", class: "primary", on: { click: () => dialog.close() } }, t("close"))),
      ),
    );
  }

  _rows() {
    const time = ms => (ms ? h("span", { title: dateTime(ms) }, when(ms)) : null);
    return new LiveTable(
      [
        {
          name: "deliveries.event",
          class: "wide",
          sign: row => row.event + row.objectId,
          draw: row => h("div", {}, h("span", { class: "name" }, row.event), h("span", { class: "sub" }, h("code", {}, row.objectId), copyButton(() => row.objectId, t("deliveries.copy", { id: row.objectId })))),
        },
        {
          name: "deliveries.state",
          class: "told",
          sign: row => JSON.stringify([row.state, row.error]),
          draw: row => h("div", {}, h("span", { class: "chip", dataset: { delivery: row.state } }, t(`deliveries.state.${row.state}`)), row.error && row.state !== "delivered" ? h("span", { class: "sub bad" }, row.error) : null),
        },
        { name: "deliveries.tries", class: "num", sign: row => number(row.attempts) },
        { name: "deliveries.status", class: "num", sign: row => row.status ?? "–" },
        { name: "deliveries.created", class: "num", sign: row => String(row.createdAt), draw: row => time(row.createdAt) },
        { name: "deliveries.next", class: "num", sign: row => String(row.nextAt), draw: row => time(row.nextAt) },
        {
          name: "",
          class: "end",
          sign: row => [row.state, row.attempts > 0].join("/"),
          draw: (row, now) =>
            h(
              "div",
              {},
              row.attempts ? rowButton("tries", t("deliveries.tries"), () => this._tries(now()), { label: t("deliveries.tries.label", { event: row.event, id: row.objectId }) }) : null,
              rowButton("again", t(row.state === "waiting" ? "deliveries.now" : "deliveries.again"), () => this._again(now()), { label: t("deliveries.again.label", { event: row.event, id: row.objectId }) }),
            ),
        },
      ],
      "deliveries.title",
    );
  }
}
