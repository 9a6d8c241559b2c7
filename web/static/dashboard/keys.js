// Keys and worker tokens: those of the configuration, and those that are made, rotated and revoked here.

import { call, explain } from "../common/api.js";
import { h, replace } from "../common/dom.js";
import { dateTime } from "../common/format.js";
import { onLanguage, t } from "../common/i18n.js";
import { askAgain, copyButton, openDialog, toast } from "../common/page.js";
import { LiveTable, rowButton } from "./table.js";

const PAGE = 50;
const DAY_MS = 86_400_000;
const SCOPES = ["call", "viewer", "metrics", "admin"];
const KEEP = [["day", DAY_MS], ["week", 7 * DAY_MS], ["none", 0]];

const pathOf = id => `/api/admin/keys/${encodeURIComponent(id)}`;

export class Keys {
  /** `tiers()`: those that queues have. `refresh()`: find out again who this page is. */
  constructor({ tiers, refresh }) {
    this._tiers = tiers;
    this._refresh = refresh;
    this._rows = [];
    this._next = null;
    this._newest = undefined;
    this._asked = 0;
    this._stopped = false;
    this._problem = h("div", { role: "alert" });
    this._empty = h("p", { class: "empty", hidden: true, dataset: { t: "keys.empty" } }, t("keys.empty"));
    this._more = h("button", { type: "button", hidden: true, dataset: { t: "load.more" }, on: { click: () => this._read(this._next) } }, t("load.more"));
    this._text = h("input", { id: "find-key", type: "search", placeholder: t("keys.find"), dataset: { tPlaceholder: "keys.find" }, autocomplete: "off", spellcheck: "false", maxlength: 256 });
    this._table = keyTable(row => this._rotate(row), row => this._revoke(row));
    const label = h("label", { for: "find-key", class: "visually-hidden", dataset: { t: "keys.find" } }, t("keys.find"));
    const find = h("form", { class: "key-search", role: "search", on: { submit: event => (event.preventDefault(), this._read()) } }, label, this._text, h("button", { type: "submit", dataset: { t: "tasks.find" } }, t("tasks.find")));
    const create = h("button", { type: "button", class: "primary", dataset: { action: "create-key", t: "keys.create" }, on: { click: () => this._create() } }, t("keys.create"));
    this.element = h(
      "section",
      { class: "panel", id: "keys", "aria-labelledby": "keys-title" },
      h(
        "div",
        { class: "panel-head" },
        h("h2", { id: "keys-title", dataset: { t: "keys.title" } }, t("keys.title")),
        h("span", { class: "muted small", dataset: { t: "keys.hint" } }, t("keys.hint")),
        h("div", { class: "actions end" }, find, create),
      ),
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
    this._forget();
    this._table.close();
  }

  /** A picture of the feed: each change of a key is written to the audit record. */
  show(picture) {
    if (!picture.store.up || picture.audit === this._newest) return;
    const first = this._newest === undefined;
    this._newest = picture.audit;
    if (!first) this._read();
  }

  /** Read the keys anew, or those behind the id `after`. */
  async _read(after = "") {
    const asked = ++this._asked;
    const query = new URLSearchParams({ limit: PAGE, text: this._text.value.trim(), after });
    try {
      const answer = await call(`/api/admin/keys?${query}`);
      if (this._stopped || asked !== this._asked) return;
      this._rows = after ? [...this._rows, ...answer.keys] : answer.keys;
      this._next = answer.next;
      replace(this._problem);
      this._draw();
    } catch (problem) {
      if (!this._stopped && asked === this._asked) replace(this._problem, h("p", { class: "notice bad" }, explain(problem)));
    }
  }

  _draw() {
    this._table.update(this._rows, row => `${row.kind} ${row.id} ${row.source}`);
    this._table.element.hidden = this._rows.length === 0;
    this._empty.hidden = this._rows.length > 0;
    this._more.hidden = this._next === null;
  }

  /** Show a secret, this once. Who made the first key of an open gateway is somebody without one from now on. */
  _tell({ id, kind, secret, notes }) {
    const shown = h("code", { id: "new-secret", class: "secret" }, secret);
    const done = h("button", { type: "button", class: "primary", on: { click: () => dialog.close() } }, t("keys.noted"));
    const dialog = openDialog(
      t(kind === "worker" ? "keys.secret.worker" : "keys.secret.caller", { id }),
      h(
        "div",
        {},
        h("p", { class: "notice warn" }, t("keys.secret.once")),
        h("p", { class: "secret-row" }, shown, copyButton(() => secret, t("keys.secret.copy"))),
        notes.map(note => h("p", { class: "notice" }, note)),
        h("div", { class: "actions" }, done),
      ),
      this._refresh,
    );
    dialog.addEventListener("cancel", event => event.preventDefault()); // Escape would lose it
    this._read();
  }

  async _rotate(row) {
    const keep = h("select", { id: "keep" }, KEEP.map(([name, ms]) => h("option", { value: ms }, t(`keys.keep.${name}`))));
    this._form(
      t("keys.ask.rotate", { id: row.id }),
      [h("p", {}, t(`keys.ask.rotate.${row.kind}`)), h("div", { class: "field" }, h("label", { for: "keep" }, t("keys.keep")), keep)],
      t("keys.rotate"),
      async () => this._tell(await call(`${pathOf(row.id)}/rotate`, { body: { keep_ms: Number(keep.value) } })),
    );
  }

  async _revoke(row) {
    if (row.kind === "worker") {
      const sure = await askAgain({ title: t("keys.ask.revoke", { id: row.id }), text: t("keys.ask.revoke.worker"), action: t("keys.revoke"), danger: true });
      if (sure) await this._carryOut(row, false);
      return;
    }
    const now = h("input", { type: "checkbox", id: "revoke-now" });
    this._form(
      t("keys.ask.revoke", { id: row.id }),
      [h("p", {}, t("keys.ask.revoke.caller")), h("p", {}, h("label", { class: "check" }, now, t("keys.revoke.now")))],
      t("keys.revoke"),
      () => this._carryOut(row, now.checked),
      true,
    );
  }

  async _carryOut(row, now) {
    try {
      const { cancelled, notes } = await call(`${pathOf(row.id)}/revoke`, { body: { now } });
      toast([t("keys.done.revoke", { id: row.id }), now ? t("done.cancel.all", { n: cancelled }) : "", ...notes].join(" "), "good");
    } catch (problem) {
      toast(explain(problem), "bad");
    }
    this._read();
  }

  _create() {
    const input = (name, attributes = {}) => h("input", { id: `key-${name}`, autocomplete: "off", spellcheck: "false", "aria-describedby": `key-${name}-hint`, ...attributes });
    const kind = h("select", { id: "key-kind" }, ["caller", "worker"].map(name => h("option", { value: name }, t(`keys.kind.${name}`))));
    const scope = h("select", { id: "key-scope", "aria-describedby": "key-scope-hint" }, SCOPES.map(name => h("option", { value: name }, t(`keys.scope.${name}`))));
    const tiers = this._tiers();
    const tier = h("select", { id: "key-tier", "aria-describedby": "key-tier-hint" }, tiers.map(name => h("option", { value: name, selected: name === "free" }, name)));
    const id = input("id", { maxlength: 64 });
    const note = input("note", { maxlength: 500 });
    const models = input("models", { placeholder: "*" });
    const weight = input("weight", { type: "number", min: 0.001, step: "any", placeholder: "1" });
    const expires = input("expires", { type: "date" });
    const delegating = h("input", { type: "checkbox", id: "key-delegating" });
    const field = (control, callers = false) => {
      const name = control.id.slice(4);
      return h("div", { class: callers ? "field for-callers" : "field" }, h("label", { for: control.id }, t(`keys.${name}`)), control, h("p", { class: "hint", id: `${control.id}-hint` }, t(`keys.${name}.hint`)));
    };
    const box = h(
      "div",
      { class: "settings" },
      field(kind),
      field(id),
      field(scope, true),
      field(tier, true),
      field(models),
      field(weight, true),
      field(expires),
      field(note),
      h("p", { class: "for-callers" }, h("label", { class: "check" }, delegating, t("keys.delegating"))),
    );
    kind.addEventListener("change", () => {
      for (const part of box.querySelectorAll(".for-callers")) part.hidden = kind.value === "worker";
    });
    const wanted = () => {
      const names = models.value.split(",").map(name => name.trim()).filter(Boolean);
      const both = {
        kind: kind.value,
        id: id.value.trim() || null,
        note: note.value.trim() || null,
        models: names.length ? names : null,
        expires: expires.value ? new Date(`${expires.value}T00:00`).getTime() : null,
      };
      if (kind.value === "worker") return both;
      return { ...both, scopes: [scope.value], tier: tier.value || null, weight: weight.value === "" ? null : Number(weight.value), delegating: delegating.checked };
    };
    this._form(t("keys.create.title"), [box], t("keys.create"), async () => this._tell(await call("/api/admin/keys", { body: wanted() })));
    id.focus();
  }

  /** A question whose form stays, with what is wrong, until the gateway has done it or the reader thinks better of it. */
  _form(title, content, action, work, danger = false) {
    const notice = h("p", { class: "field-problem", role: "alert" });
    let busy = false;
    const submit = async event => {
      event.preventDefault();
      if (busy) return;
      busy = true;
      try {
        await work();
        dialog.close();
      } catch (problem) {
        replace(notice, explain(problem));
      } finally {
        busy = false;
      }
    };
    const buttons = [
      h("button", { type: "submit", class: danger ? "danger" : "primary" }, action),
      h("button", { type: "button", class: "quiet", on: { click: () => dialog.close() } }, t("cancel")),
    ];
    const dialog = openDialog(title, h("form", { novalidate: true, on: { submit } }, content, notice, h("div", { class: "actions" }, buttons)));
  }
}

const TONES = { valid: "good", expired: "warn", revoked: "bad", replaced: "warn", unusable: "warn" };
const stateOf = row => (row.source === "configuration" ? "configuration" : row.state);

function may(row) {
  const { kind, settings } = row;
  if (kind === "worker") return t("keys.kind.worker");
  const scopes = settings.admin ? ["admin"] : (settings.scopes ?? []);
  return [...scopes, settings.delegating ? t("keys.delegating.short") : ""].filter(Boolean).join(", ") || t("value.none");
}

/** What else differs from a key that says nothing. */
function details({ kind, settings }) {
  const models = (settings.models ?? ["*"]).join(", ");
  return [kind === "caller" ? settings.tier : "", settings.weight && settings.weight !== 1 ? `× ${settings.weight}` : "", models === "*" ? "" : models].filter(Boolean).join(" · ");
}

const time = ms => (ms ? dateTime(ms) : "");

const keyTable = (rotate, revoke) =>
  new LiveTable(
    [
      { name: "keys.id", sign: row => `${row.id} ${row.note}`, draw: row => h("span", { class: "who" }, h("b", {}, row.id), row.note ? h("small", {}, row.note) : null) },
      { name: "keys.state", sign: stateOf, draw: row => h("span", { class: `flag ${stateOf(row) === "configuration" ? "info" : TONES[row.state] ?? ""}` }, t(`keys.state.${stateOf(row)}`)) },
      { name: "keys.may", sign: may },
      { name: "keys.details", class: "wide", sign: details },
      { name: "keys.expires", sign: row => time(row.expires) || (row.source === "configuration" ? "" : t("keys.never")) },
      { name: "keys.used", sign: row => time(row.lastUsed) },
      {
        name: "",
        class: "end",
        sign: row => `${row.source} ${row.state}`,
        draw: (row, now) => {
          const living = row.source === "database" && row.state !== "revoked" && row.state !== "replaced";
          if (!living) return [];
          return h("div", {}, rowButton("rotate-key", t("keys.rotate"), () => rotate(now()), { label: t("keys.ask.rotate", { id: row.id }) }), rowButton("revoke-key", t("keys.revoke"), () => revoke(now()), { danger: true, label: t("keys.ask.revoke", { id: row.id }) }));
        },
      },
    ],
    "keys.title",
  );
