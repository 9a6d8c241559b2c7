// Webhooks, everybody's: whom they tell, how they fail, and what was delivered.

import { call } from "../../common/api.js";
import { h } from "../../common/dom.js";
import { dateTime, number } from "../../common/format.js";
import { t } from "../../common/i18n.js";
import { PagedTable } from "../../common/paged.js";
import { askAgain } from "../../common/page.js";
import { LiveTable, rowButton } from "../../common/table.js";
import { carryOut } from "../actions.js";
import { panel } from "../parts.js";
import { chip, time } from "./cells.js";

const PAGE = 50;
const AGAIN_MS = 5000;
const STATES = ["", "waiting", "delivered", "failed"];

export class Webhooks {
  /** `wanted`: URLSearchParams of the address: the `webhook` and `state` of the deliveries that are shown. */
  constructor(wanted) {
    this._wanted = wanted;
    this._hooks = new PagedTable(
      hookTable(row => this._off(row)),
      {
        path: after => `/api/admin/webhooks?${new URLSearchParams({ limit: PAGE, after })}`,
        rowsOf: answer => answer.webhooks,
        keyOf: row => row.id,
        empty: "webhooks.empty",
        againMs: AGAIN_MS,
      },
    );
    this._log = new PagedTable(deliveryTable(), {
      path: after => `/api/admin/webhooks/deliveries?${new URLSearchParams({ limit: PAGE, ...this._filters(), after })}`,
      rowsOf: answer => answer.deliveries,
      keyOf: row => row.id,
      empty: "deliveries.empty",
      againMs: AGAIN_MS,
      onRows: () => this._drawFilters(),
    });
    this._chips = h("span", { class: "actions chips" });
    const change = () => go({ ...this._filters(), state: this._state.value });
    this._state = h("select", { id: "deliveries-state", on: { change } });
    const choice = h("div", { class: "period" }, h("label", { for: "deliveries-state", class: "visually-hidden", dataset: { t: "batches.state" } }, t("batches.state")), this._state);
    const hooks = panel("webhooks", "webhooks.title", { hint: "webhooks.hint" }, this._hooks.element);
    this.element = h("div", { class: "grid" }, hooks, panel("deliveries", "deliveries.title", { hint: "deliveries.hint", end: [this._chips, choice] }, this._log.element));
    this._drawFilters();
    this._hooks.read();
    this._log.read();
  }

  close() {
    this._hooks.close();
    this._log.close();
  }

  /** Show other deliveries. */
  use(wanted) {
    this._wanted = wanted;
    this._log.clear();
    this._drawFilters();
    this._log.read();
  }

  show() {
    // nothing of it is in the feed
  }

  _filters() {
    return Object.fromEntries(["webhook", "state"].filter(name => this._wanted.get(name)).map(name => [name, this._wanted.get(name)]));
  }

  _drawFilters() {
    const { webhook, state = "" } = this._filters();
    this._state.replaceChildren(...STATES.map(name => h("option", { value: name, selected: name === state }, t(`delivery.${name || "any"}`))));
    this._chips.replaceChildren(...(webhook ? [h("a", { class: "tag", href: address({ state }) }, `${webhook} ✕`)] : []));
  }

  async _off(row) {
    const sure = await askAgain({ title: t("webhooks.ask.off"), text: t("webhooks.ask.off.text", { user: row.user, url: row.url }), action: t("webhooks.do.off"), danger: true });
    if (!sure) return;
    await carryOut(
      async () => {
        await call(`/api/admin/webhooks/${row.id}/off`, { method: "POST", body: {} });
        return t("webhooks.done.off");
      },
      () => this._hooks.read(),
    );
  }
}

function address(filters) {
  const query = new URLSearchParams(Object.entries(filters).filter(([, value]) => value));
  return `#/webhooks${String(query) ? `?${query}` : ""}`;
}

function go(filters) {
  location.hash = address(filters);
}

const whose = ({ user, key }) => h("span", { class: "who owner" }, user === "*" ? t("webhooks.everyUser") : user, key && key !== user ? h("small", {}, key) : null);

/** How a webhook stands: it tells, it fails, or it is off. */
const standing = row => (!row.enabled ? "off" : row.failing ? "failing" : "on");

function standingOf(row) {
  const state = standing(row);
  const why = state === "off" ? row.offWhy : state === "failing" ? t("webhooks.failing", { n: number(row.failing.attempts), at: dateTime(row.failing.since), error: row.failing.error }) : null;
  return h("div", { class: "why" }, chip("webhook", state), why ? h("span", { class: "sub whole" }, why) : null, row.missed ? h("span", { class: "sub warn" }, t("webhooks.missed", { n: number(row.missed) })) : null);
}

const hookTable = off =>
  new LiveTable(
    [
      { name: "webhooks.webhook", class: "wide", sign: row => row.url + row.id, draw: row => h("div", {}, h("a", { class: "who", href: address({ webhook: row.id }) }, row.url), h("span", { class: "sub id" }, row.id)) },
      { name: "batches.owner", sign: row => `${row.user}/${row.key}`, draw: whose },
      { name: "webhooks.events", sign: row => row.events.join(", "), draw: row => h("span", { class: "who" }, row.events.join(", ")) },
      { name: "batches.state", sign: row => JSON.stringify([row.enabled, row.offWhy, row.failing, row.missed]), draw: standingOf },
      { name: "webhooks.waiting", class: "num", sign: row => number(row.waiting) },
      { name: "webhooks.delivered", class: "num", sign: row => String(row.deliveredAt), draw: row => time(row.deliveredAt) },
      {
        name: "",
        class: "end",
        sign: row => String(row.enabled),
        draw: (row, now) => (row.enabled ? h("div", {}, rowButton("webhook-off", t("webhooks.do.off"), () => off(now()), { label: t("webhooks.do.off.label", { url: row.url }), danger: true })) : null),
      },
    ],
    "webhooks.title",
  );

const TASK = /^(resp_)?([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})$/;

/** What an event is about; a task, or the response that it is, has a page. */
function subject(id) {
  const task = TASK.exec(id)?.[2];
  return task ? h("a", { class: "id", href: `#/tasks/${task}` }, id) : h("span", { class: "id" }, id);
}

const deliveryTable = () =>
  new LiveTable(
    [
      { name: "deliveries.event", class: "wide", sign: row => row.event + row.objectId, draw: row => h("div", {}, row.event, h("span", { class: "sub" }, subject(row.objectId))) },
      { name: "batches.owner", sign: row => `${row.user}/${row.key}`, draw: whose },
      { name: "deliveries.to", sign: row => row.url, draw: row => h("span", { class: "who" }, row.url) },
      { name: "batches.state", sign: row => `${row.state}/${row.error}`, draw: row => h("div", { class: "why" }, chip("delivery", row.state), row.error && row.state !== "delivered" ? h("span", { class: "sub whole" }, row.error) : null) },
      { name: "deliveries.attempts", class: "num", sign: row => number(row.attempts) },
      { name: "deliveries.status", class: "num", sign: row => row.status ?? "–" },
      { name: "deliveries.at", class: "num", sign: row => row.createdAt, draw: row => time(row.createdAt) },
      { name: "deliveries.next", class: "num", sign: row => String(row.nextAt), draw: row => time(row.nextAt) },
    ],
    "deliveries.title",
  );
