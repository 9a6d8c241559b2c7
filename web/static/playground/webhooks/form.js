// Where a webhook is made, or changed: its URL, what it tells of, a note.

import { explain } from "../../common/api.js";
import { byId, h, replace, setText } from "../../common/dom.js";
import { t } from "../../common/i18n.js";
import { ANY, EVENTS } from "./events.js";

const ALL = Object.values(EVENTS).flat();

export class WebhookForm {
  /** `save(body, changed)`: makes a webhook of it, or changes the one that is given. Throws Problem. */
  constructor(form, { save }) {
    this._form = form;
    this._save = save;
    this._changed = null; // the webhook that is changed; null: a new one is made
    this._of = null; // { everyUser: whether one may hear of all users of the key, user: whose it would be otherwise }
    this._busy = false;
    form.addEventListener("submit", event => {
      event.preventDefault();
      this._send();
    });
    form.addEventListener("change", () => this._drawEvents());
    this.draw();
  }

  /** Whose webhooks are made: `user` is the one that is named, "" for none; `everyUser`: the key may have one for all of its users. */
  setWhose(user, everyUser) {
    this._of = { user, everyUser };
    this._drawWhose();
  }

  /** Change this one; null: make a new one. */
  change(hook) {
    this._changed = hook;
    this.draw({ url: hook?.url ?? "", note: hook?.note ?? "", events: hook?.events ?? [ANY], everyUser: false });
    if (hook) byId("webhook-url").focus();
  }

  /** Whether this one is being changed. */
  changes(id) {
    return this._changed?.id === id;
  }

  draw(values = this._values()) {
    const { url, note, events, everyUser } = values;
    const any = events.includes(ANY);
    const which = (value, checked) => h("label", {}, h("input", { type: "radio", name: "webhook-which", value, checked }), h("span", {}, t(`webhook.which.${value}`)));
    const group = ([about, names]) =>
      h(
        "div",
        { role: "group", "aria-label": t(`webhook.about.${about}`) },
        names.map(name => h("label", { class: "check" }, h("input", { type: "checkbox", name: "webhook-event", value: name, checked: !any && events.includes(name) }), h("code", {}, name))),
      );
    const stop = h("button", { type: "button", class: "quiet", id: "webhook-stop", on: { click: () => this.change(null) } }, t("cancel"));
    replace(
      this._form,
      h("h2", { id: "webhook-form-title" }, t(this._changed ? "webhook.title.change" : "webhook.title")),
      h("p", { class: "muted" }, t("webhook.intro")),
      h(
        "div",
        { class: "field" },
        h("label", { for: "webhook-url" }, t("webhook.url")),
        h("input", { id: "webhook-url", type: "url", maxlength: 2048, autocomplete: "off", spellcheck: "false", required: true, value: url, placeholder: "https://app.example.com/hooks/fairlane", "aria-describedby": "webhook-url-hint webhook-problem" }),
        h("p", { class: "hint", id: "webhook-url-hint" }, t("webhook.url.hint")),
      ),
      h(
        "fieldset",
        { id: "webhook-events" },
        h("legend", {}, t("webhook.events")),
        h("div", { class: "segmented" }, which("all", any), which("some", !any)),
        h("div", { id: "webhook-some", class: "events", hidden: any }, Object.entries(EVENTS).map(group)),
        h("p", { class: "hint", id: "webhook-all" }, t("webhook.which.all.hint")),
      ),
      h("div", { class: "field" }, h("label", { for: "webhook-note" }, t("webhook.note")), h("input", { id: "webhook-note", maxlength: 200, autocomplete: "off", value: note })),
      h("div", { class: "field", id: "webhook-every", hidden: true }, h("label", { class: "check" }, h("input", { type: "checkbox", id: "webhook-every-user", checked: everyUser }), h("span", {}, t("webhook.everyUser")))),
      h("p", { class: "hint", id: "webhook-whose", hidden: true }),
      h("div", { class: "actions" }, h("button", { type: "submit", class: "primary", id: "webhook-send", disabled: this._busy }, t(this._changed ? "webhook.change" : "webhook.make")), this._changed ? stop : null),
      h("p", { class: "notice bad", id: "webhook-problem", role: "alert", hidden: true }),
    );
    this._drawEvents();
    this._drawWhose();
  }

  /** What is typed so far. */
  _values() {
    if (!byId("webhook-url")) return { url: "", note: "", events: [ANY], everyUser: false };
    return { url: byId("webhook-url").value, note: byId("webhook-note").value, events: this._events(), everyUser: byId("webhook-every-user").checked };
  }

  _events() {
    if (this._form.querySelector("input[name=webhook-which][value=all]").checked) return [ANY];
    return [...this._form.querySelectorAll("input[name=webhook-event]:checked")].map(input => input.value).filter(name => ALL.includes(name));
  }

  _drawEvents() {
    const all = this._events().includes(ANY);
    byId("webhook-some").hidden = all;
    byId("webhook-all").hidden = !all;
  }

  _drawWhose() {
    const { user = "", everyUser = false } = this._of ?? {};
    byId("webhook-every").hidden = !everyUser || Boolean(user) || this._changed !== null;
    const whose = byId("webhook-whose");
    whose.hidden = !user || this._changed !== null;
    setText(whose, user ? t("webhook.whose", { user }) : "");
  }

  async _send() {
    if (this._busy) return;
    const { url, note, events, everyUser } = this._values();
    const wrong = !url.trim() ? "webhook.noUrl" : !events.length ? "webhook.noEvents" : null;
    if (wrong) {
      this._problem(t(wrong));
      (url.trim() ? this._form.querySelector("input[name=webhook-event]") : byId("webhook-url")).focus();
      return;
    }
    const every = everyUser && !byId("webhook-every").hidden;
    this._setBusy(true);
    this._problem(null);
    try {
      await this._save({ url: url.trim(), events, note: note.trim(), ...(every ? { everyUser: true } : {}) }, this._changed);
      this.change(null);
    } catch (problem) {
      this._problem(explain(problem));
    } finally {
      this._setBusy(false);
    }
  }

  _setBusy(busy) {
    this._busy = busy;
    byId("webhook-send").disabled = busy;
  }

  _problem(text) {
    const box = byId("webhook-problem");
    box.hidden = text === null;
    setText(box, text);
  }
}
