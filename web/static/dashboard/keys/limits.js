// The limits of a key, or of each user of a delegating one: how much may be used, what is left of it now, and the form that changes them.

import { explain } from "../../common/api.js";
import { h } from "../../common/dom.js";
import { duration, number } from "../../common/format.js";
import { t } from "../../common/i18n.js";
import { askAgain, toast } from "../../common/page.js";
import { LiveTable, gauge } from "../../common/table.js";
import { settingName } from "../actions.js";
import { panel } from "../parts.js";
import { patch } from "./actions.js";
import { actButton, field, line, openForm } from "./form.js";
import { changeable } from "./keys.js";

const LIMITS = ["requests_per_minute", "requests_per_day", "tokens_per_minute", "tokens_per_day", "max_running", "max_waiting"];
const LEFT = { limits: "limits", user_limits: "userLimits" };
const MOST_DIGITS = 15;

const camel = name => name.replace(/_(\w)/g, (_, letter) => letter.toUpperCase());

/** What was typed as the gateway takes it: a whole number, null for nothing; anything else as it is, for the gateway to say what is wrong. */
const typed = text => (text === "" ? null : /^-?\d+$/.test(text) && text.length <= MOST_DIGITS ? Number(text) : text);

export class Limits {
  /** `part`: `limits` or `user_limits`. `again()`: read the key anew. */
  constructor(part, again) {
    this._part = part;
    this._again = again;
    this._row = null;
    this._table = limitTable(part);
    this._empty = h("p", { class: "empty", dataset: { t: "limits.empty" } }, t("limits.empty"));
    this._hint = h("p", { class: "hint" });
    this._remove = actButton(`remove-${part}`, "action.remove", () => this._take());
    this._change = actButton(`change-${part}`, "action.change", () => this._ask());
    this.element = panel(part, `${part}.title`, { end: [this._remove, this._change] }, this._empty, this._table.element, this._hint);
  }

  close() {
    this._table.close();
  }

  /** `row`: the key, with what is left of its limits, and of those of `user` if one was named. */
  show(row, user) {
    this._row = row;
    const left = row[LEFT[this._part]];
    const set = row.settings[this._part] ?? {};
    const rows = LIMITS.filter(name => set[name]).map(name => ({ name, limit: set[name], left: left?.[camel(name)] ?? null }));
    this._table.update(rows, one => one.name);
    this._table.element.hidden = rows.length === 0;
    this._empty.hidden = rows.length > 0;
    this._change.hidden = !changeable(row);
    this._remove.hidden = !changeable(row) || rows.length === 0;
    const users = this._part === "user_limits" && rows.length > 0;
    this._hint.textContent = rows.length > 0 && left === null ? t("limits.unknown") : users && !user ? t("limits.name") : users ? t("limits.of", { user }) : "";
    this._hint.hidden = !this._hint.textContent;
  }

  _ask() {
    const { id, settings } = this._row;
    const before = settings[this._part] ?? {};
    const fields = LIMITS.map(name => field(`${this._part}.${name}`, line(`limit-${name}`, { inputmode: "numeric", value: before[name] ?? "", maxlength: 40 }), settingName(name)));
    openForm({
      title: t(`${this._part}.ask`, { id }),
      content: [h("div", { class: "settings" }, fields.map(one => one.element)), h("p", { class: "hint" }, t("limits.hint"))],
      fields,
      action: t("do.change"),
      work: async () => {
        const wanted = LIMITS.map((name, index) => [name, typed(fields[index].control.value.trim())]).filter(([name, value]) => value !== (before[name] ?? null));
        if (!wanted.length) return t("change.nothing");
        await patch(id, { [this._part]: Object.fromEntries(wanted) });
        this._again();
        return "";
      },
    });
  }

  async _take() {
    const { id } = this._row;
    if (!(await askAgain({ title: t(`${this._part}.remove`, { id }), text: t("limits.remove.text"), action: t("action.remove"), danger: true }))) return;
    try {
      await patch(id, { [this._part]: null });
    } catch (problem) {
      toast(explain(problem), "bad");
    }
    this._again();
  }
}

const limitTable = part =>
  new LiveTable(
    [
      { name: "limits.limit", sign: row => settingName(row.name) },
      { name: "limits.most", class: "num", sign: row => number(row.limit) },
      {
        name: "limits.left",
        class: "num",
        sign: row => (row.left ? `${row.left.remaining} of ${row.left.limit}` : "–"),
        draw: row => (row.left ? gauge(number(row.left.remaining), row.left.remaining / row.left.limit) : "–"),
      },
      { name: "limits.back", class: "num", sign: row => (row.left?.resetMs ? duration(row.left.resetMs) : row.left ? "" : "–") },
    ],
    `${part}.title`,
  );
