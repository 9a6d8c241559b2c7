// Cells that the tables of this view share.

import { h } from "../../common/dom.js";
import { dateTime, when } from "../../common/format.js";
import { t } from "../../common/i18n.js";

/** The address of the batches and responses that a query chooses. */
export const address = query => `#/batches${String(query) ? `?${query}` : ""}`;

/** A query without one of its members. */
export function without(wanted, name) {
  const left = new URLSearchParams(wanted);
  left.delete(name);
  return left;
}

/** Whose it is, with links to what else is theirs. */
export const owner = ({ user, key }) =>
  h("span", { class: "who" }, h("a", { href: address(new URLSearchParams({ user })) }, user), key && key !== user ? h("small", {}, h("a", { href: address(new URLSearchParams({ key })) }, key)) : null);

export const time = ms => (ms ? h("span", { title: dateTime(ms) }, when(ms)) : null);

/** A state as a chip; `kind`: the strings' and the colours'. */
export const chip = (kind, state) => h("span", { class: "chip", dataset: { [kind]: state } }, t(`${kind}.${state}`));
