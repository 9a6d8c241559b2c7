// Actions of operators: each asks by a form in a dialog, which stays, with what was typed and what is wrong with it, until the gateway
// has done it or the reader closes it. Each is recorded in the audit log.

import { call, enabled, explain } from "../common/api.js";
import { h, replace } from "../common/dom.js";
import { t } from "../common/i18n.js";
import { copyButton, openDialog, openForm, toast } from "../common/page.js";

const MAX_CALLS = 20;

/**
 * A button for an action on a row: { name, label, needs (features), when(row), danger, title(row), text(row), fields(row, context), partial, send(row, values, nonce) →
 * [path, options], done(answer, row), run(row) }. With `run` it asks nothing. With `partial` only fields that were changed are sent. An answer
 * with a `secret` is shown once; one with `more` was not the last.
 *
 * A field: { name, label, hint (strings' keys, or texts), value, options, type, parse, …attributes of its control }.
 * `context`: { tiers(), names(), refresh() }; `after()` follows what was done.
 */
export const actionButton = (action, rowOf, context, after) =>
  h(
    "button",
    {
      type: "button",
      class: `small ${action.danger ? "danger" : ""}`,
      dataset: action.run ? {} : { action: action.name },
      "aria-label": action.title && rowOf() ? action.title(rowOf()) : null,
      on: { click: () => (action.run ? attempt(() => action.run(rowOf())) : attempt(() => ask(action, rowOf(), context, after))) },
    },
    t(action.label),
  );

export const offered = (actions, row) => actions.filter(({ when, needs = [] }) => needs.every(enabled) && (!when || when(row)));

async function attempt(work) {
  try {
    await work();
  } catch (problem) {
    toast(explain(problem), "bad");
  }
}

async function ask(action, row, context, after) {
  const nonce = crypto.randomUUID(); // one per form, so that a repeated click does it once
  const fields = ((await action.fields?.(row, context)) ?? []).map(makeField);
  const work = async () => {
    const sent = action.partial ? fields.filter(({ changed }) => changed()) : fields;
    const [path, options] = action.send(row, Object.fromEntries(sent.map(({ name, value }) => [name, value()])), nonce);
    let answer = await call(path, { method: "POST", ...options });
    let { cancelled } = answer;
    for (let calls = 1; answer.more && calls < MAX_CALLS; calls += 1) {
      answer = await call(path, { method: "POST", ...options });
      cancelled += answer.cancelled;
    }
    after();
    if (answer.secret) return () => showSecret(answer, context.refresh);
    return () => toast([action.done({ ...answer, cancelled }, row), ...(answer.notes ?? [])].join(" "), "good");
  };
  const complain = ({ fields: problems = {} }) => {
    const wrong = fields.filter(one => one.complain(problems[one.name] ?? ""));
    wrong[0]?.control.focus();
    return wrong.length > 0 && wrong.length === Object.keys(problems).length;
  };
  const content = [action.text ? h("p", {}, action.text(row)) : null, h("div", { class: "settings" }, fields.map(({ element }) => element))];
  openForm({ title: action.title(row), content, action: t(action.label), danger: action.danger, complain, work });
  fields[0]?.control.focus();
}

function makeField({ name, label = `col.${name}`, hint, value: before = "", options, type = "text", parse = text => text || null, ...attributes }) {
  const id = `field-${name}`;
  const described = { id, "aria-describedby": `${hint ? `${id}-hint ` : ""}${id}-problem` };
  const control = options
    ? h("select", described, options.map(([value, text]) => h("option", { value, selected: value === before }, text)))
    : type === "lines"
      ? h("textarea", { ...described, rows: 3, spellcheck: "false" })
      : type === "checkbox"
        ? h("input", { ...described, type, checked: Boolean(before) })
        : h("input", { ...described, type, step: type === "number" ? "any" : null, value: before, autocomplete: "off", spellcheck: "false", maxlength: 500, ...attributes });
  const wrong = h("p", { class: "field-problem", id: `${id}-problem` });
  const named = type === "checkbox" ? h("label", { class: "check" }, control, t(label)) : [h("label", { for: id }, t(label)), control];
  return {
    name,
    control,
    element: h("div", { class: "field" }, named, hint ? h("p", { class: "hint", id: `${id}-hint` }, t(hint)) : null, wrong),
    value: () => (type === "checkbox" ? control.checked : parse(control.value.trim())),
    changed: () => control.value !== String(before),
    complain(text) {
      replace(wrong, text);
      control.setAttribute("aria-invalid", String(text !== ""));
      return text !== "";
    },
  };
}

/** Show a secret, this once. `after` is called when it was noted. */
function showSecret({ id, secret, notes }, after) {
  const done = h("button", { type: "button", class: "primary", on: { click: () => dialog.close() } }, t("close"));
  const dialog = openDialog(
    t("secret.title", { id }),
    h(
      "div",
      {},
      h("p", { class: "notice warn" }, t("secret.once")),
      h("p", { class: "secret-row" }, h("code", { id: "new-secret", class: "secret" }, secret), copyButton(() => secret, t("secret.copy"))),
      notes.map(note => h("p", { class: "notice" }, note)),
      h("div", { class: "actions" }, done),
    ),
    after,
  );
  dialog.addEventListener("cancel", event => event.preventDefault()); // Escape would lose it
}
