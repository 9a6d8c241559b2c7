// What several views are made of: a panel with its head, a choice of few.

import { h, radios } from "../common/dom.js";
import { t } from "../common/i18n.js";

/** A section under a heading. `key`, `hint`: strings' keys; `note` stands behind them, and `end` at the other end of the head. */
export const panel = (id, key, { hint = null, note = null, end = null }, ...content) =>
  h(
    "section",
    { class: "panel", id, "aria-labelledby": `${id}-title` },
    h(
      "div",
      { class: "panel-head" },
      h("h2", { id: `${id}-title`, dataset: { t: key } }, t(key)),
      hint ? h("span", { class: "muted small", dataset: { t: hint } }, t(hint)) : null,
      note,
      end ? h("div", { class: "actions end" }, end) : null,
    ),
    content,
  );

/** Radio buttons in a row. `choices`: { value, key (of the string) }. */
export const segmented = (name, choices, chosen, label, choose) =>
  h(
    "div",
    { class: "segmented slim", role: "radiogroup", dataset: { tLabel: label }, "aria-label": t(label) },
    radios(name, choices.map(({ value, key }) => [value, h("span", { dataset: { t: key } }, t(key))]), chosen, choose),
  );
