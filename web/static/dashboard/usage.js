// What tasks used over days: figures and plots of all that is asked for, and a table by model, key, user and more. All of it stands
// in the address, which can be passed on.

import { call, explain } from "../common/api.js";
import { h, later, replace } from "../common/dom.js";
import { credits, dayMonth, duration, number, percent } from "../common/format.js";
import { onLanguage, t } from "../common/i18n.js";
import { LiveTable } from "../common/table.js";
import { download } from "../common/transfer.js";
import { DaysPlot, USED_TASKS, USED_TOKENS } from "./charts.js";
import { panel } from "./parts.js";
import { segmented } from "./period.js";

const RANGES = { "7d": 7, "30d": 30, "90d": 90, "365d": 365 };
const USUAL = "30d";
const BY = ["model", "route", "key", "user", "tier", "code", "day"];
const FILTERS = ["model", "route", "key", "user", "tier"];
const DAY_MS = 86_400_000;
const AGAIN_MS = 30_000;
const MOST = 200;

export class Usage {
  /** `wanted`: URLSearchParams of the address. */
  constructor(wanted) {
    this._stopped = false;
    this._asked = 0;
    this._calledOff = () => {};
    this._answers = null;
    this._table = null;
    this._problem = h("div", { role: "alert" });
    this._empty = h("p", { class: "empty", hidden: true, dataset: { t: "usage.empty" } }, t("usage.empty"));
    this._ranges = segmented("usage-range", Object.keys(RANGES).map(value => ({ value, key: `range.${value}` })), USUAL, "range.choice", range => this._go({ range }));
    this._by = segmented("usage-by", BY.map(value => ({ value, key: `usage.by.${value}` })), BY[0], "usage.by", by => this._go({ by }));
    this._chips = h("div", { class: "actions" });
    this._more = h("p", { class: "muted small", hidden: true });
    this._rows = h("div");
    this._figures = new Figures();
    this._tokens = new DaysPlot(USED_TOKENS, "usage.tokens.long");
    this._tasks = new DaysPlot(USED_TASKS, "usage.tasks.long");
    this.element = h(
      "div",
      { class: "grid", id: "usage" },
      h("div", { class: "period" }, this._ranges, h("span", { class: "muted small", dataset: { t: "usage.hint" } }, t("usage.hint")), this._chips),
      this._problem,
      this._figures.element,
      h("div", { class: "grid plots two" }, panel("usage-tokens", "plot.tokens", {}, this._tokens.element), panel("usage-tasks", "usage.tasks", {}, this._tasks.element)),
      h(
        "section",
        { class: "panel", "aria-labelledby": "usage-title" },
        h(
          "div",
          { class: "panel-head" },
          h("h2", { id: "usage-title", dataset: { t: "usage.title" } }, t("usage.title")),
          this._by,
          h("div", { class: "actions end" }, h("button", { type: "button", class: "small", id: "save-usage", dataset: { t: "tasks.save" }, on: { click: () => this._save() } }, t("tasks.save"))),
        ),
        this._empty,
        this._rows,
        this._more,
      ),
    );
    this._forget = onLanguage(() => this._draw());
    this.use(wanted);
  }

  close() {
    this._stopped = true;
    this._calledOff();
    this._forget();
    this._table?.close();
    this._tokens.close();
    this._tasks.close();
  }

  /** The feed knows nothing of what was used. */
  show() {}

  /** The address has changed. */
  use(wanted) {
    this._wanted = wanted;
    this._range = wanted.get("range") in RANGES ? wanted.get("range") : USUAL;
    this._of = BY.includes(wanted.get("by")) ? wanted.get("by") : BY[0];
    this._ranges.querySelector(`[value="${this._range}"]`).checked = true;
    this._by.querySelector(`[value="${this._of}"]`).checked = true;
    // users' and routes' outcomes are not added up, nor users by route
    this._by.querySelector('[value="code"]').disabled = wanted.has("user") || wanted.has("route");
    this._by.querySelector('[value="route"]').disabled = wanted.has("user");
    this._by.querySelector('[value="user"]').disabled = wanted.has("route");
    this._drawChips();
    this._read();
  }

  _go({ range = this._range, by = this._of, without = null }) {
    const query = new URLSearchParams([["range", range], ["by", by]]);
    for (const name of FILTERS) if (this._wanted.get(name) && name !== without) query.set(name, this._wanted.get(name));
    location.hash = `#/usage?${query}`;
  }

  /** What GET /api/admin/usage is asked. */
  _query(by, more = {}) {
    const filters = FILTERS.filter(name => this._wanted.get(name)).map(name => [name, this._wanted.get(name)]);
    return new URLSearchParams([["by", by], ["from", Date.now() - (RANGES[this._range] - 1) * DAY_MS], ...filters, ...Object.entries(more)]);
  }

  _drawChips() {
    replace(
      this._chips,
      FILTERS.filter(name => this._wanted.get(name)).map(name =>
        h("button", { type: "button", class: "tag", on: { click: () => this._go({ without: name }) } }, `${t(`usage.by.${name}`)}: ${this._wanted.get(name)} ✕`),
      ),
    );
  }

  async _read() {
    this._calledOff();
    this._asked += 1;
    const mine = this._asked;
    const over = () => this._stopped || mine !== this._asked;
    try {
      const [days, rows] = await Promise.all([call(`/api/admin/usage?${this._query("day")}`), call(`/api/admin/usage?${this._query(this._of, { limit: MOST })}`)]);
      if (over()) return;
      this._answers = { days, rows };
      replace(this._problem);
      this._draw();
    } catch (problem) {
      if (over()) return;
      replace(this._problem, h("p", { class: "notice bad" }, explain(problem)));
    }
    this._calledOff = later(() => this._read(), AGAIN_MS);
  }

  _draw() {
    this._drawChips();
    if (!this._answers) return;
    const { days, rows } = this._answers;
    this._figures.show(days.total);
    const drawn = filled(days, this._range);
    this._tokens.show(drawn, days.total);
    this._tasks.show(drawn, days.total);
    const [by] = rows.by;
    const kind = `${by} ${rows.total.cost > 0}`; // costs are shown where there are prices
    if (this._table?.kind !== kind) {
      this._table?.close();
      this._table = usageTable(by, rows.total.cost > 0, name => this._filter(by, name));
      this._table.kind = kind;
      replace(this._rows, this._table.element);
    }
    const shown = by === "day" ? [...rows.rows].reverse() : rows.rows;
    this._table.update(shown, row => row[by]);
    this._table.element.hidden = shown.length === 0;
    this._empty.hidden = shown.length > 0;
    this._more.hidden = !rows.more;
    replace(this._more, t("usage.more", { n: number(MOST) }));
  }

  /** The address that shows only what this row is about. */
  _filter(by, name) {
    const query = new URLSearchParams([["range", this._range], ["by", by !== "model" ? "model" : this._wanted.has("route") ? "key" : "user"]]);
    for (const other of FILTERS) if (this._wanted.get(other)) query.set(other, this._wanted.get(other));
    query.set(by, name);
    return `#/usage?${query}`;
  }

  /** Keep the table as a file, with all of its rows. */
  async _save() {
    try {
      await download(`/api/admin/usage?${this._query(this._of, { format: "csv", limit: 10_000 })}`, "usage.csv");
    } catch (problem) {
      replace(this._problem, h("p", { class: "notice bad" }, explain(problem)));
    }
  }
}

/** Every day of the period, those without a row too; a day of UTC stands where the reader's day of that name begins. */
function filled({ from, to, rows }, range) {
  const known = new Map(rows.map(row => [row.day, row]));
  const days = [];
  for (let at = from; at < to; at += DAY_MS) days.push(new Date(at).toISOString().slice(0, 10));
  return { range, at: days.map(localDay), rows: days.map(day => known.get(day)) };
}

const localDay = day => new Date(`${day}T00:00:00`).getTime();

class Figures {
  constructor() {
    this._cells = new Map();
    this.element = h("dl", { class: "panel figures" });
    for (const name of ["tasks", "failed", "input", "output", "waited", "ran", "cost"]) {
      const cell = { value: h("dd", { dataset: { figure: `usage-${name}` } }, "–"), more: h("dd", { class: "more" }) };
      cell.all = h("div", { hidden: name === "cost" }, h("dt", { dataset: { t: `usage.${name}` } }, t(`usage.${name}`)), cell.value, cell.more);
      this._cells.set(name, cell);
      this.element.append(cell.all);
    }
  }

  show(total) {
    const share = (part, all) => (all ? percent(part / all, 1) : "");
    this._set("tasks", number(total.tasks), total.estimated ? t("usage.estimated", { n: number(total.estimated) }) : "");
    this._set("failed", number(total.failed), total.tasks ? t("figure.failed.more", { share: share(total.failed, total.tasks) }) : "");
    this._set("input", number(total.inputTokens), total.cachedTokens ? t("usage.cached.more", { share: share(total.cachedTokens, total.inputTokens) }) : "");
    this._set("output", number(total.outputTokens), total.reasoningTokens ? t("usage.reasoning.more", { share: share(total.reasoningTokens, total.outputTokens) }) : "");
    this._set("waited", total.tasks ? duration(total.waitedMs / total.tasks) : "–");
    this._set("ran", total.tasks ? duration(total.ranMs / total.tasks) : "–");
    this._set("cost", credits(total.cost));
    this._cells.get("cost").all.hidden = !total.cost;
  }

  _set(name, value, more = "") {
    const cell = this._cells.get(name);
    cell.value.textContent = value;
    cell.more.textContent = more;
  }
}

const nameOf = (by, row) => (by === "day" ? dayMonth(localDay(row.day)) : by === "code" && !row.code ? t("usage.completed") : row[by] || t("usage.none"));

function usageTable(by, costs, addressOf) {
  const links = FILTERS.includes(by);
  const count = (name, value) => ({ name, class: "num", sign: row => number(value(row)), sort: value });
  const mean = (name, value) => ({ name, class: "num", sign: row => duration(value(row) / row.tasks), sort: row => value(row) / row.tasks });
  return new LiveTable(
    [
      {
        name: `usage.by.${by}`,
        sign: row => nameOf(by, row),
        draw: row =>
          links && row[by]
            ? h("a", { class: "who", href: addressOf(row[by]) }, row[by])
            : h("span", { class: "who", title: by === "code" && row.category ? t("codes.category", { category: row.category }) : null }, nameOf(by, row)),
        sort: row => row[by],
      },
      count("usage.tasks", row => row.tasks),
      count("usage.failed", row => row.failed),
      count("usage.cancelled", row => row.cancelled),
      count("usage.input", row => row.inputTokens),
      count("usage.output", row => row.outputTokens),
      count("usage.cached", row => row.cachedTokens),
      count("usage.reasoning", row => row.reasoningTokens),
      mean("usage.waited", row => row.waitedMs),
      mean("usage.ran", row => row.ranMs),
      ...(costs ? [{ name: "usage.cost", class: "num", sign: row => credits(row.cost), sort: row => row.cost }] : []),
    ],
    "usage.title",
  );
}
