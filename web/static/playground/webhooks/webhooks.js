// The caller's webhooks: made, tried, switched off and on, given another secret, removed; and what each has told.

import { call, explain } from "../../common/api.js";
import { byId, h, replace } from "../../common/dom.js";
import { dateTime, number, when } from "../../common/format.js";
import { t } from "../../common/i18n.js";
import { PagedTable } from "../../common/paged.js";
import { askAgain, copyButton, toast } from "../../common/page.js";
import { LiveTable, rowButton } from "../../common/table.js";
import { CodePanel } from "../code/panel.js";
import { Deliveries } from "./deliveries.js";
import { ANY, nameOf, standing } from "./events.js";
import { WebhookForm } from "./form.js";

const PATH = "/api/webhooks";
const AGAIN_MS = 5000;

export class WebhooksView {
  /** `story(told)`: for the code panel. `who()`: the caller's headers { named, wire }. */
  constructor({ story, who }) {
    this._story = story;
    this._who = who;
    this._element = byId("webhooks");
    this._secretBox = byId("webhook-secret");
    this._code = new CodePanel(byId("webhook-code"), "webhook-code-title");
    this._secret = null; // { hook, secret, until } that was told just now
    this._table = null;
    this._me = null;
    this._whose = "";
    this._wanted = false;
    this._deliveries = new Deliveries(byId("deliveries"), { who: () => this._who().wire, onSent: () => this._table?.refresh() });
    this._form = new WebhookForm(byId("webhook-form"), { save: (body, changed) => this._save(body, changed) });
  }

  /** Whether the reader sees it: only then it asks the gateway. */
  set shown(shown) {
    this._wanted = shown;
    this._openOrClose();
  }

  setMe(me) {
    this._forget();
    this._me = me;
    this._openOrClose();
  }

  draw() {
    this._form.draw();
    this._deliveries.draw();
    this._drawTable();
    this._drawSecret();
    this._code.draw();
  }

  // ---- what is shown ----------

  _openOrClose() {
    if (!this._wanted || !this._me) {
      this._stop();
      return;
    }
    const whose = this._who().named["X-Fairlane-User"] ?? "";
    if (whose !== this._whose) this._forget(); // another user of the key
    if (this._table !== null) return;
    this._whose = whose;
    this._form.setWhose(whose, Boolean(this._me.delegating && !this._me.open));
    this._table = new PagedTable(this._rows(), {
      path: () => PATH,
      rowsOf: answer => answer.webhooks,
      nextOf: () => null,
      keyOf: hook => hook.id,
      empty: "webhooks.empty",
      headers: () => this._who().wire,
      againMs: AGAIN_MS,
      onRows: hooks => this._onRows(hooks),
    });
    this._drawTable();
    this._table.read();
  }

  /** Ask the gateway no more. What was told stays: a secret is told once. */
  _stop() {
    this._table?.close();
    this._table = null;
    this._deliveries.close();
  }

  /** All of it was somebody else's. */
  _forget() {
    this._stop();
    this._form.change(null);
    this._tellSecret(null);
    this._code.show(null);
    replace(this._element);
  }

  _drawTable() {
    if (this._table === null) return;
    replace(this._element, h("div", { class: "panel-head" }, h("h2", { id: "webhooks-title" }, t("webhooks.title")), h("span", { class: "muted small" }, t("webhooks.hint"))), this._table.element);
  }

  _onRows(hooks) {
    const { shown } = this._deliveries;
    if (shown && !hooks.some(({ id }) => id === shown.id)) this._deliveries.close();
  }

  // ---- what the reader does ----------

  /** A call about one of them; its answer, or null after it was told what went wrong. */
  async _do(hook, path, options = {}) {
    try {
      return await call(`${PATH}/${hook.id}${path}`, { headers: this._who().wire, ...options });
    } catch (problem) {
      toast(explain(problem), "bad");
      return null;
    } finally {
      this._table?.read();
    }
  }

  async _save(body, changed) {
    const headers = this._who().wire;
    if (changed) {
      await call(`${PATH}/${changed.id}`, { method: "PATCH", body, headers });
      toast(t("webhook.changed"), "good");
    } else {
      const { secret, ...hook } = await call(PATH, { body, headers });
      this._tellSecret({ hook, secret });
      this._tell([{ do: "webhook", body, id: hook.id }]);
    }
    this._table?.read();
  }

  async _test(hook) {
    if ((await this._do(hook, "/test", { method: "POST" })) === null) return;
    toast(t("webhooks.test.done"), "good");
    this._show(hook);
  }

  _show(hook) {
    if (this._deliveries.shown?.id === hook.id) this._deliveries.refresh();
    else this._deliveries.open(hook);
    byId("deliveries-title").focus();
  }

  async _switch(hook) {
    const enabled = !hook.enabled;
    if (!enabled) {
      const sure = await askAgain({ title: t("webhooks.off.ask"), text: t("webhooks.off.sure"), action: t("webhooks.off") });
      if (!sure) return;
    }
    if ((await this._do(hook, "", { method: "PATCH", body: { enabled } })) !== null) toast(t(enabled ? "webhooks.on.done" : "webhooks.off.done"), "good");
  }

  async _rotate(hook) {
    const sure = await askAgain({ title: t("webhooks.rotate.ask"), text: t("webhooks.rotate.sure"), action: t("webhooks.rotate") });
    if (!sure) return;
    const answer = await this._do(hook, "/rotate", { method: "POST", body: {} });
    if (answer) this._tellSecret({ hook, secret: answer.secret, until: answer.oldSecretUntil });
  }

  async _remove(hook) {
    const sure = await askAgain({ title: t("webhooks.delete.ask"), text: t("webhooks.delete.sure", { url: nameOf(hook.url) }), action: t("webhooks.delete"), danger: true });
    if (!sure || (await this._do(hook, "", { method: "DELETE" })) === null) return;
    toast(t("webhooks.deleted"), "good");
    if (this._secret?.hook.id === hook.id) this._tellSecret(null);
    if (this._form.changes(hook.id)) this._form.change(null);
  }

  _tell(steps) {
    this._code.show(this._story({ headers: this._who().named, steps }));
  }

  // ---- the secret, once ----------

  _tellSecret(told) {
    this._secret = told;
    this._drawSecret();
    if (told) byId("webhook-secret-title").focus();
  }

  _drawSecret() {
    const told = this._secret;
    this._secretBox.hidden = told === null;
    if (told === null) {
      replace(this._secretBox);
      return;
    }
    const kept = () => {
      const { id } = told.hook;
      this._tellSecret(null);
      document.querySelector(`#webhooks [data-key="${id}"] button`)?.focus();
    };
    replace(
      this._secretBox,
      h("h2", { id: "webhook-secret-title", tabindex: -1 }, t("secret.title")),
      h("p", {}, t("secret.once", { url: nameOf(told.hook.url) })),
      h("p", { class: "secret" }, h("code", { id: "webhook-secret-text" }, told.secret), copyButton(() => told.secret, t("secret.copy"))),
      told.until ? h("p", { class: "hint" }, t("secret.until", { at: dateTime(told.until) })) : null,
      h("div", { class: "actions" }, h("button", { type: "button", class: "primary", id: "webhook-secret-kept", on: { click: kept } }, t("secret.kept"))),
    );
  }

  // ---- rows ----------

  _rows() {
    const time = ms => (ms ? h("span", { title: dateTime(ms) }, when(ms)) : null);
    return new LiveTable(
      [
        {
          name: "webhooks.url",
          class: "wide",
          sign: hook => JSON.stringify([hook.url, hook.note, hook.events, hook.everyUser]),
          draw: hook =>
            h(
              "div",
              {},
              h("span", { class: "name", title: hook.url }, nameOf(hook.url)),
              h("span", { class: "sub" }, hook.events.includes(ANY) ? t("webhooks.events.all") : hook.events.join(", ")),
              hook.everyUser ? h("span", { class: "sub" }, t("webhooks.everyUser")) : null,
              hook.note ? h("span", { class: "sub" }, hook.note) : null,
              h("span", { class: "sub" }, h("code", {}, hook.id), copyButton(() => hook.id, t("webhooks.copy", { url: nameOf(hook.url) }))),
            ),
        },
        { name: "webhooks.state", class: "told", sign: hook => JSON.stringify([hook.enabled, hook.offWhy, hook.failing, hook.missed]), draw: stateOf },
        { name: "webhooks.waiting", class: "num", sign: hook => number(hook.waiting) },
        { name: "webhooks.delivered", class: "num", sign: hook => String(hook.deliveredAt), draw: hook => time(hook.deliveredAt) },
        { name: "", class: "end", sign: hook => `${hook.enabled}/${hook.url}`, draw: (hook, now) => this._buttons(hook, now) },
      ],
      "webhooks.title",
    );
  }

  _buttons(hook, now) {
    const button = (action, text, work, more = {}) => rowButton(action, t(text), () => work(now()), { label: t("webhooks.do", { what: t(text), url: nameOf(hook.url) }), ...more });
    return h(
      "div",
      {},
      button("deliveries", "deliveries.title", one => this._show(one)),
      hook.enabled ? button("test", "webhooks.test", one => this._test(one)) : null,
      button("change", "webhooks.change", one => this._form.change(one)),
      button("rotate", "webhooks.rotate", one => this._rotate(one)),
      button("switch", hook.enabled ? "webhooks.off" : "webhooks.on", one => this._switch(one)),
      button("delete", "webhooks.delete", one => this._remove(one), { danger: true }),
    );
  }
}

/** How one stands, and why, whole: what is wrong comes with what can be done. */
function stateOf(hook) {
  const state = standing(hook);
  const { failing } = hook;
  return h(
    "div",
    {},
    h("span", { class: "chip", dataset: { webhook: state } }, t(`webhook.${state}`)),
    state === "off" ? h("span", { class: "sub" }, hook.offWhy) : null,
    state === "failing" ? h("span", { class: "sub" }, t("webhooks.failing", { n: number(failing.attempts), at: when(failing.since) })) : null,
    state === "failing" ? h("span", { class: "sub bad" }, failing.error) : null,
    state === "failing" && failing.nextAt ? h("span", { class: "sub" }, t("webhooks.next", { at: when(failing.nextAt) })) : null,
    hook.missed ? h("span", { class: "sub bad" }, t("webhooks.missed", { n: hook.missed })) : null,
  );
}
