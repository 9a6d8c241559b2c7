// Keys and worker tokens: those of the configuration, and those that are made, rotated and revoked here.

import { h } from "../../common/dom.js";
import { dateTime } from "../../common/format.js";
import { t } from "../../common/i18n.js";
import { PagedTable } from "../../common/paged.js";
import { LiveTable, rowButton } from "../../common/table.js";
import { panel } from "../parts.js";
import { create, revoke, rotate } from "./actions.js";

const PAGE = 50;

export class Keys {
  /** `tiers()`: those that queues have. `refresh()`: find out again who this page is: who makes the first key of an open gateway is somebody without one. */
  constructor({ tiers, refresh }) {
    this._newest = undefined;
    const again = () => this._list.read();
    this._text = h("input", { id: "find-key", type: "search", placeholder: t("keys.find"), dataset: { tPlaceholder: "keys.find" }, autocomplete: "off", spellcheck: "false", maxlength: 256 });
    this._list = new PagedTable(keyTable(row => rotate(row, again, refresh), row => revoke(row, again)), {
      path: after => `/api/admin/keys?${new URLSearchParams({ limit: PAGE, text: this._text.value.trim(), after })}`,
      rowsOf: answer => answer.keys,
      keyOf: row => `${row.kind} ${row.id} ${row.source}`,
      empty: "keys.empty",
    });
    const label = h("label", { for: "find-key", class: "visually-hidden", dataset: { t: "keys.find" } }, t("keys.find"));
    const search = event => {
      event.preventDefault();
      again();
    };
    const find = h("form", { class: "key-search", role: "search", on: { submit: search } }, label, this._text, h("button", { type: "submit", dataset: { t: "tasks.find" } }, t("tasks.find")));
    const make = h("button", { type: "button", class: "primary", dataset: { action: "create-key", t: "keys.create" }, on: { click: () => create(tiers(), again, refresh) } }, t("keys.create"));
    this.element = panel("keys", "keys.title", { hint: "keys.hint", end: [find, make] }, this._list.element);
    again();
  }

  close() {
    this._list.close();
  }

  /** A picture of the feed: each change of a key is written to the audit record. */
  show(picture) {
    if (!picture.store.up || picture.audit === this._newest) return;
    const first = this._newest === undefined;
    this._newest = picture.audit;
    if (!first) this._list.read();
  }
}

const TONES = { valid: "good", expired: "warn", revoked: "bad", replaced: "warn", unusable: "warn", configuration: "info" };
const stateOf = row => (row.source === "configuration" ? "configuration" : row.state);

/** Whether a key is valid, or where it is from. */
export const stateFlag = row => h("span", { class: `flag ${TONES[stateOf(row)] ?? ""}` }, t(`keys.state.${stateOf(row)}`));

/** Whether it can be changed here. */
export const changeable = row => row.source === "database" && row.state !== "revoked" && row.state !== "replaced";

/** What it is for. */
export function may({ kind, settings }) {
  if (kind === "worker") return t("keys.kind.worker");
  const scopes = settings.admin ? ["admin"] : (settings.scopes ?? []);
  const more = [settings.delegating && "delegating", settings.signing && "signing"].filter(Boolean);
  return [...scopes, ...more.map(name => t(`keys.${name}.short`))].join(", ") || t("value.none");
}

/** What else differs from a key that says nothing. */
function details({ kind, settings }) {
  const models = (settings.models ?? ["*"]).join(", ");
  return [kind === "caller" ? settings.tier : "", settings.weight && settings.weight !== 1 ? `× ${settings.weight}` : "", models === "*" ? "" : models].filter(Boolean).join(" · ");
}

const time = ms => (ms ? dateTime(ms) : "");
const linkTo = row => `#/keys/${row.id}${row.kind === "worker" ? "?kind=worker" : ""}`;

const keyTable = (rotate, revoke) =>
  new LiveTable(
    [
      { name: "keys.id", sign: row => `${row.id} ${row.note}`, draw: row => h("span", { class: "who" }, h("a", { href: linkTo(row) }, h("b", {}, row.id)), row.note ? h("small", {}, row.note) : null) },
      { name: "keys.state", sign: stateOf, draw: stateFlag },
      { name: "keys.may", sign: may },
      { name: "keys.details", class: "wide", sign: details },
      { name: "keys.expires", sign: row => time(row.expires) || (row.source === "configuration" ? "" : t("keys.never")) },
      { name: "keys.used", sign: row => time(row.lastUsed) },
      {
        name: "",
        class: "end",
        sign: row => `${row.source} ${row.state}`,
        draw: (row, now) => {
          if (!changeable(row)) return [];
          return h("div", {}, rowButton("rotate-key", t("keys.rotate"), () => rotate(now()), { label: t("keys.ask.rotate", { id: row.id }) }), rowButton("revoke-key", t("keys.revoke"), () => revoke(now()), { danger: true, label: t("keys.ask.revoke", { id: row.id }) }));
        },
      },
    ],
    "keys.title",
  );
