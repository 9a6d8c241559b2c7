// Forms in dialogs: they stay, with what was typed and what is wrong with it, until the gateway has done it or the reader thinks better of it.

import { explain } from "../common/api.js";
import { h, replace } from "../common/dom.js";
import { t } from "../common/i18n.js";
import { openDialog } from "../common/page.js";

/** A button that changes something: who may only look does not see it. `key`: of its text. */
export const actButton = (action, key, work, more = "") => h("button", { type: "button", class: `small ${more}`, dataset: { action, t: key }, on: { click: work } }, t(key));

/** A text of one line. */
export const line = (id, attributes = {}) => h("input", { id, autocomplete: "off", spellcheck: "false", ...attributes });

/** A choice of few. `options`: [value, text]. */
export const choice = (id, options, chosen) => h("select", { id }, options.map(([value, text]) => h("option", { value, selected: value === chosen }, text)));

/** A yes or no. */
export const tick = (id, checked = false) => h("input", { type: "checkbox", id, checked });

/**
 * A control with its label and hint, strings of the reader's language. `name`: what the gateway calls it, so that what it finds wrong
 * with it (`fields` of a refusal) stands here.
 */
export function field(name, control, label, hint = "") {
  const wrong = h("p", { class: "field-problem", id: `${control.id}-problem` });
  const help = hint ? h("p", { class: "hint", id: `${control.id}-hint` }, hint) : null;
  control.setAttribute("aria-describedby", `${hint ? `${control.id}-hint ` : ""}${wrong.id}`);
  const named = control.type === "checkbox" ? h("label", { class: "check" }, control, label) : [h("label", { for: control.id }, label), control];
  return {
    name,
    control,
    element: h("div", { class: "field" }, named, help, wrong),
    complain(text) {
      replace(wrong, text);
      control.setAttribute("aria-invalid", String(text !== ""));
      return text !== "";
    },
  };
}

/** Ask with a form. `fields`: those of `content` that show their mistakes; `work()` does it, and may return an error message. */
export function openForm({ title, content, fields = [], action, work, danger = false }) {
  const notice = h("p", { class: "field-problem", role: "alert" });
  let busy = false;
  const complain = (problems, otherwise) => {
    const wrong = fields.filter(one => one.complain(problems[one.name] ?? ""));
    wrong[0]?.control.focus();
    const all = Object.keys(problems).every(name => wrong.some(one => one.name === name));
    replace(notice, wrong.length && all ? "" : otherwise);
  };
  const submit = async event => {
    event.preventDefault();
    if (busy) return;
    busy = true;
    try {
      const wrong = await work();
      if (wrong) complain({}, wrong);
      else dialog.close();
    } catch (problem) {
      complain(problem.fields ?? {}, explain(problem));
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
