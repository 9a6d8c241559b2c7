// Which time the plots show, and of what: everything, or one model, queue or worker. It stands in the address.

import { h, replace, setText } from "../common/dom.js";
import { onLanguage, t } from "../common/i18n.js";
import { widthOf } from "./charts.js";

const RANGES = ["15m", "1h", "6h", "24h", "7d"];
const USUAL = "1h";
const KINDS = ["model", "queue", "worker"];

/** Radio buttons in a row. `choices`: { value, key (of the string) }. */
export const segmented = (name, choices, chosen, label, choose) =>
  h(
    "div",
    { class: "segmented slim", role: "radiogroup", dataset: { tLabel: label }, "aria-label": t(label) },
    choices.map(({ value, key }) =>
      h("label", {}, h("input", { type: "radio", name, value, checked: value === chosen, on: { change: () => choose(value) } }), h("span", { dataset: { t: key } }, t(key))),
    ),
  );

export class Period {
  /** `wanted`: URLSearchParams of the address. */
  constructor(wanted) {
    this._names = {};
    this._drawn = "";
    this._range = segmented("range", RANGES.map(value => ({ value, key: `range.${value}` })), USUAL, "range.choice", range => this._go({ range }));
    this._of = h("select", { id: "period-of", on: { change: () => this._go({ of: this._of.value }) } });
    this._width = h("span", { class: "muted small" });
    this.element = h(
      "div",
      { class: "period", id: "period" },
      this._range,
      h("label", { for: "period-of", class: "visually-hidden", dataset: { t: "period.of" } }, t("period.of")),
      this._of,
      this._width,
    );
    this._forget = onLanguage(() => this._draw());
    this.use(wanted);
  }

  close() {
    this._forget();
  }

  /** The address has changed. */
  use(wanted) {
    this.range = RANGES.includes(wanted.get("range")) ? wanted.get("range") : USUAL;
    this.kind = KINDS.find(kind => wanted.get(kind)) ?? "";
    this.name = this.kind && wanted.get(this.kind);
    this._range.querySelector(`[value="${this.range}"]`).checked = true;
    this._draw();
  }

  /** What GET /api/admin/history is asked, and the address holds; empty for the last hour of everything. */
  get query() {
    return this._query(this.range, this.kind, this.name);
  }

  _query(range, kind, name) {
    return new URLSearchParams([...(range === USUAL ? [] : [["range", range]]), ...(kind ? [[kind, name]] : [])]);
  }

  _go({ range = this.range, of = this._value() }) {
    const [kind] = of.split(":", 1);
    const query = this._query(range, kind, of.slice(kind.length + 1));
    location.hash = query.size ? `#/?${query}` : "#/";
  }

  _value() {
    return this.kind ? `${this.kind}:${this.name}` : "";
  }

  /** `history`: the answer that is shown; `names`: { models, queues, workers } that are known besides. */
  show(history, names) {
    setText(this._width, widthOf(history));
    this._names = Object.fromEntries(Object.entries(names).map(([kinds, more]) => [kinds, [...new Set([...history.names[kinds], ...more])].sort()]));
    if (document.activeElement !== this._of) this._draw();
  }

  _draw() {
    const groups = KINDS.map(kind => {
      const known = this._names[`${kind}s`] ?? [];
      return [kind, kind === this.kind && !known.includes(this.name) ? [...known, this.name] : known];
    });
    const sign = JSON.stringify([groups, this._value(), t("period.all")]);
    if (sign === this._drawn) return;
    this._drawn = sign;
    const option = (value, text) => h("option", { value, selected: value === this._value() }, text);
    replace(
      this._of,
      option("", t("period.all")),
      groups.filter(([, names]) => names.length).map(([kind, names]) => h("optgroup", { label: t(`${kind}s.title`) }, names.map(name => option(`${kind}:${name}`, name)))),
    );
  }
}
