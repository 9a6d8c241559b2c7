// One key or worker token: what it is, its limits and what is left of them, who pays for its tasks, whether it signs.

import { call, explain } from "../../common/api.js";
import { h, later, replace, setText } from "../../common/dom.js";
import { dateTime, number } from "../../common/format.js";
import { onLanguage, t } from "../../common/i18n.js";
import { panel } from "../parts.js";
import { patch, pathOf, revoke, rotate } from "./actions.js";
import { actButton, field, openForm, tick } from "./form.js";
import { changeable, may, stateFlag } from "./keys.js";
import { Limits } from "./limits.js";
import { Quota } from "./quota.js";

const AGAIN_MS = 5000;

export class Key {
  /** `wanted`: URLSearchParams of the address; `tiers`, `refresh` as of Keys. */
  constructor(id, wanted, { tiers, refresh }) {
    this.id = id;
    this._row = null;
    this._newest = undefined;
    this._asked = 0;
    this._stopped = false;
    this._calledOff = () => {};
    const again = () => this._read();
    const now = () => this._row;
    this._problem = h("div", { role: "alert" });
    this._flag = h("span");
    this._facts = h("dl", { class: "facts" });
    this._notice = h("p", { class: "notice", hidden: true });
    this._acts = h("div", { class: "end" }, actButton("rotate-key", "keys.rotate", () => rotate(now(), again, refresh)), actButton("revoke-key", "keys.revoke", () => revoke(now(), again), "danger"));
    this._head = h("section", { class: "panel", id: "key", "aria-labelledby": "key-name", hidden: true }, h("div", { class: "task-head" }, h("h2", { id: "key-name" }, id), this._flag, this._acts), this._facts, this._notice);
    this._chosen = h("input", { id: "find-user", type: "search", placeholder: t("keys.user"), dataset: { tPlaceholder: "keys.user" }, autocomplete: "off", spellcheck: "false", maxlength: 256 });
    this._users = this._chooser();
    this._signing = new Signing({ again, rotate: () => rotate(now(), again, refresh) });
    this._limits = new Limits("limits", again);
    this._userLimits = new Limits("user_limits", again);
    this._quota = new Quota(id, { again, tiers });
    this._callers = h("div", { class: "grid", hidden: true }, this._users, h("div", { class: "grid parts" }, this._limits.element, this._userLimits.element, this._signing.element), this._quota.element);
    this.element = h("div", { class: "grid" }, h("p", { class: "small" }, "← ", h("a", { href: "#/keys", dataset: { t: "keys.back" } }, t("keys.back"))), this._problem, this._head, this._callers);
    this._forget = onLanguage(() => this._draw());
    this.use(wanted);
  }

  close() {
    this._stopped = true;
    this._calledOff();
    this._forget();
    this._limits.close();
    this._userLimits.close();
    this._quota.close();
  }

  /** A picture of the feed: each change of a key is written to the audit record. */
  show(picture) {
    if (!picture.store.up || picture.audit === this._newest) return;
    const first = this._newest === undefined;
    this._newest = picture.audit;
    if (!first) this._read();
  }

  /** The address has changed. */
  use(wanted) {
    this._kind = wanted.get("kind") === "worker" ? "worker" : "";
    this._user = wanted.get("user") ?? "";
    this._chosen.value = this._user;
    this._read();
  }

  _chooser() {
    const go = user => {
      location.hash = user ? `#/keys/${this.id}?${new URLSearchParams({ user })}` : `#/keys/${this.id}`;
    };
    const submit = event => {
      event.preventDefault();
      go(this._chosen.value.trim());
    };
    this._all = h("button", { type: "button", class: "quiet", dataset: { t: "keys.user.all" }, on: { click: () => go("") } }, t("keys.user.all"));
    return h(
      "form",
      { class: "key-search", id: "users", role: "search", on: { submit } },
      h("label", { for: "find-user", class: "visually-hidden", dataset: { t: "keys.user" } }, t("keys.user")),
      this._chosen,
      h("button", { type: "submit", dataset: { t: "keys.user.show" } }, t("keys.user.show")),
      this._all,
    );
  }

  async _read() {
    this._calledOff();
    const mine = (this._asked += 1);
    const over = () => this._stopped || mine !== this._asked;
    try {
      const query = new URLSearchParams([["kind", this._kind], ["user", this._user]].filter(([, value]) => value));
      const row = await call(`${pathOf(this.id)}?${query}`);
      if (over()) return;
      this._row = row;
      replace(this._problem);
      this._draw();
    } catch (problem) {
      if (over()) return;
      replace(this._problem, h("p", { class: "notice bad" }, explain(problem)));
      if (problem.status === 400 || problem.status === 404) return;
    }
    this._calledOff = later(() => this._read(), AGAIN_MS);
  }

  _draw() {
    const row = this._row;
    if (!row) return;
    this._head.hidden = false;
    replace(this._flag, stateFlag(row));
    replace(this._facts, facts(row).map(([key, value]) => h("div", {}, h("dt", {}, t(key)), h("dd", {}, value))));
    this._notice.hidden = row.source === "database";
    setText(this._notice, t("keys.configured"));
    this._acts.hidden = !changeable(row);
    this._callers.hidden = row.kind !== "caller";
    if (row.kind !== "caller") return;
    const { delegating } = row.settings;
    this._users.hidden = !delegating;
    this._all.hidden = !this._user;
    this._limits.show(row, "");
    this._userLimits.show(row, this._user);
    this._userLimits.element.hidden = !delegating;
    this._signing.show(row);
    this._quota.show(row, delegating ? this._user : "");
  }
}

const never = ms => (ms ? dateTime(ms) : t("keys.never"));

/** What is known of a key, as [string's key, text]. */
function facts(row) {
  const { settings, secrets } = row;
  const callers = row.kind === "caller";
  const ending = secrets.map(secret => secret.validUntil).filter(Boolean);
  const all = [
    ["keys.may", may(row)],
    ["keys.note", row.note],
    ["keys.tier", callers && settings.tier],
    ["keys.weight", callers && number(settings.weight ?? 1, 3)],
    ["keys.models", (settings.models ?? ["*"]).join(", ")],
    ["keys.user_from", settings.user_from],
    ["keys.created", row.created && dateTime(row.created)],
    ["keys.expires", row.source === "database" && never(row.expires)],
    ["keys.revoked", row.revoked && dateTime(row.revoked)],
    ["keys.used", row.source === "database" && never(row.lastUsed)],
    ["keys.secrets", secrets.length > 0 && [number(secrets.length), ...ending.map(at => t("keys.secrets.until", { at: dateTime(at) }))].join(", ")],
  ];
  return all.filter(([, value]) => value);
}

const SWITCHES = ["signing", "delegating"];

/** Whether a key signs, and what that lets it do. */
class Signing {
  constructor({ again, rotate }) {
    this._again = again;
    this._row = null;
    this._facts = h("dl", { class: "facts" });
    this._text = h("span");
    this._notice = h("div", { class: "notice warn", hidden: true }, this._text, " ", actButton("rotate-to-sign", "keys.rotate", rotate));
    this._change = actButton("change-signing", "action.change", () => this._ask());
    this.element = panel("signing", "signing.title", { end: this._change }, this._facts, this._notice);
  }

  show(row) {
    this._row = row;
    const { settings } = row;
    this._change.hidden = !changeable(row);
    replace(this._facts, SWITCHES.map(name => h("div", {}, h("dt", {}, t(`signing.${name}`)), h("dd", { dataset: { fact: name } }, t(`value.${Boolean(settings[name])}`)))));
    const signs = row.secrets.filter(secret => secret.signs).length;
    this._notice.hidden = !(settings.signing && changeable(row) && signs < row.secrets.length);
    setText(this._text, t(signs ? "signing.some" : "signing.none"));
  }

  _ask() {
    const { id, settings } = this._row;
    const fields = SWITCHES.map(name => field(name, tick(`change-${name}`, Boolean(settings[name])), t(`signing.${name}`), t(`signing.${name}.hint`)));
    openForm({
      title: t("signing.ask", { id }),
      content: fields.map(one => one.element),
      fields,
      action: t("do.change"),
      work: async () => {
        const changed = fields.filter(({ name, control }) => control.checked !== Boolean(settings[name]));
        if (!changed.length) return t("change.nothing");
        await patch(id, Object.fromEntries(changed.map(({ name, control }) => [name, control.checked])));
        this._again();
        return "";
      },
    });
  }
}
