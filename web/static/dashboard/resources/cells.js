// Cells that several resources share.

import { h } from "../../common/dom.js";
import { dateTime, number, when } from "../../common/format.js";
import { t } from "../../common/i18n.js";

/** The name of an actor of the audit log. */
export const actor = name => (name === "(open)" ? t("audit.open") : name);

/** A resource with one section. */
export const listed = section => ({ name: section.name, sections: [section] });

export const flag = (text, tone = "", title = null) => h("span", { class: `flag ${tone}`, title }, text);

/** A task's status as a coloured chip. */
export const statusChip = status => h("span", { class: "chip", dataset: { status } }, t(`status.${status}`));

/** A value that leads to the view with that value as a filter. */
export const link = (view, name, value) => h("a", { class: "who", href: `#/${view}?${new URLSearchParams({ [name]: value })}` }, value);

export const count = (name, value) => ({ name, value: row => number(value(row)), num: true, sort: value });

export const at = (name, value) => ({ name, num: true, value: row => (value(row) ? h("span", { title: dateTime(value(row)) }, when(value(row))) : "–") });

export const text = (name, value, more = {}) => ({ name, value: row => value(row) || "–", ...more });

/** A status as a chip; `kind`: the prefix of its strings and its colours. `why(row)`: below it. */
export const chip = (kind, value, why = () => "") => ({
  name: "col.status",
  value: row => h("div", { class: "why" }, h("span", { class: "chip", dataset: { [kind]: value(row) } }, t(`${kind}.${value(row)}`)), why(row) ? h("span", { class: "sub whole" }, why(row)) : null),
});

/** The user and the key of a record, with links that filter by them. */
export const owner = resource => ({
  name: "col.user",
  value: ({ user, key }) => h("span", { class: "who owner" }, user === "*" ? t("col.everyUser") : link(resource, "user", user), key && key !== user ? h("small", {}, link(resource, "key", key)) : null),
});

export const anyOf = (prefix, values, any = "col.any") => [["", () => t(any)], ...values.map(value => [value, () => t(`${prefix}.${value}`)])];

/** The members of `query` with these names, and more. */
export const queryOf = (query, names, more = {}) =>
  new URLSearchParams([...names.filter(name => query.get(name)).map(name => [name, query.get(name)]), ...Object.entries(more).filter(([, value]) => value)]);
