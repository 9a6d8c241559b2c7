// Changes of settings: which wait or hold, for which share of the tasks, and how the tasks on their two sides compare.

import { call, explain } from "../../common/api.js";
import { h, later, replace } from "../../common/dom.js";
import { credits, dateTime, duration, number, percent } from "../../common/format.js";
import { onLanguage, t } from "../../common/i18n.js";
import { PagedTable } from "../../common/paged.js";
import { LiveTable, meter } from "../../common/table.js";
import { settingName, valueText } from "../actions.js";
import { actButton } from "../keys/form.js";
import { panel } from "../parts.js";
import { end, keep, takeBack, widen } from "./actions.js";

const AGAIN_MS = 5_000;
const TONES = { scheduled: "warn", active: "good", ended: "info", taken_back: "info" };

export class Changes {
  /** `id`: the change that is compared; undefined: none is. */
  constructor(id) {
    this.id = id;
    this._change = null;
    this._problem = null;
    this._newest = undefined;
    this._asked = 0;
    this._calledOff = () => {};
    this._list = new PagedTable(changeTable(), {
      path: () => "/api/admin/changes",
      rowsOf: answer => answer.changes,
      keyOf: row => row.id,
      empty: "changes.empty",
    });
    this._shown = h("div", { class: "grid" });
    this.element = h("div", { class: "grid" }, this._shown, panel("changes", "changes.title", { hint: "changes.hint" }, this._list.element));
    this._forget = onLanguage(() => this._draw());
    this._again();
  }

  close() {
    this._stopped = true;
    this._calledOff();
    this._forget();
    this._list.close();
  }

  /** The address says nothing more. */
  use() {}

  /** A picture of the feed: each change is written to the audit record. */
  show(picture) {
    if (!picture.store.up || picture.audit === this._newest) return;
    const first = this._newest === undefined;
    this._newest = picture.audit;
    if (!first) this._again();
  }

  _again() {
    this._list.read();
    this._read();
  }

  async _read() {
    this._calledOff();
    const mine = (this._asked += 1);
    if (!this.id) return;
    try {
      const change = await call(`/api/admin/changes/${encodeURIComponent(this.id)}`);
      if (this._stopped || mine !== this._asked) return;
      this._change = change;
      this._problem = null;
    } catch (problem) {
      if (this._stopped || mine !== this._asked) return;
      this._problem = problem;
    }
    this._draw();
    if (this._problem?.status === 404) return;
    if (this._problem || this._change.state === "active") this._calledOff = later(() => this._read(), AGAIN_MS);
  }

  _draw() {
    const problem = this._problem ? h("p", { class: "notice bad", role: "alert" }, explain(this._problem)) : null;
    if (!this._change) {
      replace(this._shown, problem);
      return;
    }
    const held = this._shown.contains(document.activeElement) ? document.activeElement.dataset.action : null;
    const change = this._change;
    replace(
      this._shown,
      panel(
        "change",
        "changes.one",
        { end: live(change) ? buttons(change, () => this._again()) : null },
        h("div", { class: "task-head" }, h("h3", { class: "id" }, change.id), stateFlag(change)),
        problem,
        change.problem ? h("p", { class: "notice bad" }, t("changes.problem", { why: change.problem })) : null,
        facts(change),
      ),
      change.comparison ? comparison(change) : change.databaseAway ? h("p", { class: "notice warn" }, t("changes.away", { why: change.databaseAway })) : null,
    );
    if (held) this._shown.querySelector(`[data-action="${held}"]`)?.focus();
  }
}

const live = ({ state }) => state === "scheduled" || state === "active";

const stateFlag = row => h("span", { class: `flag ${row.problem ? "bad" : TONES[row.state]}` }, t(row.problem ? "changes.state.unfit" : `changes.state.${row.state}`));

/** What is changed: a route's tier, too. */
function target(row) {
  const more = [row.tier, row.vision ? t("changes.vision") : ""].filter(Boolean).join(", ");
  return h("span", { class: "who" }, h("small", {}, t(`changes.kind.${row.kind}`)), h("b", {}, row.name), more ? h("small", {}, more) : null);
}

const sets = row => Object.entries(row.set).map(([name, value]) => h("div", { class: "change" }, `${settingName(name)} → `, h("code", {}, Array.isArray(value) ? value.join(", ") || t("value.none") : valueText(value))));

function shareText(row) {
  if (row.rollout === null) return t("changes.whole");
  return t(row.by === "user" ? "changes.share.users" : "changes.share.tasks", { share: percent(row.rollout / 100) });
}

const share = row => h("span", { class: "gauge" }, h("span", {}, shareText(row)), row.rollout === null ? null : meter(row.rollout / 100));

function buttons(change, done) {
  const shares = change.rollout !== null;
  return [
    shares ? actButton("widen-change", "changes.widen", () => widen(change, done)) : null,
    actButton("end-change", "changes.end", () => end(change, done)),
    change.rollout !== 100 || change.until ? actButton("keep-change", "changes.keep", () => keep(change, done)) : null,
    actButton("take-back-change", "changes.takeBack", () => takeBack(change, done), "danger"),
  ];
}

const begins = row => dateTime(row.beganAt ?? row.at);
const ends = row => (row.endedAt ?? row.until ? dateTime(row.endedAt ?? row.until) : "");

function facts(change) {
  const all = [
    ["changes.of", target(change)],
    ["changes.set", h("div", {}, sets(change))],
    ["changes.share", share(change)],
    ["changes.begins", begins(change)],
    ["changes.ends", ends(change) || t("changes.open")],
    ["changes.who", change.who === "(open)" ? t("audit.open") : change.who],
    ["changes.note", change.note],
  ];
  return h(
    "dl",
    { class: "facts" },
    all.filter(([, value]) => value !== "").map(([key, value]) => h("div", {}, h("dt", {}, t(key)), h("dd", {}, value))),
  );
}

// ---- old and new, side by side ----------

const SIDES = ["old", "new"];
const TIMES = [["wait", "waitMs"], ["first", "firstOutputMs"], ["duration", "durationMs"]];

/** A number of tasks, and its share of those that ended. */
const part = (side, n) => (side.tasks ? t("changes.part", { n: number(n), share: percent(n / side.tasks, 1) }) : number(n));

function comparison(change) {
  const { comparison: compared } = change;
  const sides = SIDES.map(name => compared[name]);
  const row = (title, of, { sub = false } = {}) => h("tr", {}, h("th", { scope: "row", class: sub ? "sub" : null }, title), sides.map(side => h("td", { class: "num" }, of(side))));
  const codes = name => [...new Set(sides.flatMap(side => side[name].map(({ code }) => code)))];
  const byCode = (name, shown) => codes(name).map(code => row(h("code", {}, code), side => shown(side, side[name].find(one => one.code === code)), { sub: true }));
  const each = value => (value === null ? "–" : number(value, 1));
  const body = [
    row(t("changes.tasks"), side => number(side.tasks)),
    row(t("changes.completed"), side => part(side, side.completed)),
    row(t("changes.failed"), side => part(side, side.failed)),
    byCode("failures", (side, found) => part(side, found?.tasks ?? 0)),
    row(t("changes.cancelled"), side => part(side, side.cancelled)),
    row(t("changes.moved"), side => part(side, side.moved)),
    TIMES.flatMap(([name, key]) => ["p50", "p95"].map(which => row(t(`changes.${name}.${which}`), side => (side[key] ? duration(side[key][which]) : "–")))),
    row(t("changes.input"), side => each(side.inputTokensPerTask)),
    row(t("changes.output"), side => each(side.outputTokensPerTask)),
    row(t("changes.cost"), side => (side.costPerTask === null ? "–" : credits(side.costPerTask))),
    row(t("changes.refused"), side => number(side.refused)),
    byCode("refusals", (_, found) => number(found?.calls ?? 0)),
  ];
  const table = h(
    "table",
    { class: "compared", "aria-label": t("changes.compared") },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, t("changes.ended")), SIDES.map(name => h("th", { scope: "col", class: "num" }, t(`changes.side.${name}`))))),
    h("tbody", {}, body),
  );
  const few = compared.enough ? null : h("p", { class: "notice warn" }, t("changes.few"));
  const none = sides.every(side => side.tasks === 0 && side.refused === 0);
  return panel("comparison", "changes.compared", { hint: "changes.compared.hint" }, none ? h("p", { class: "empty" }, t("changes.none")) : [few, h("div", { class: "table-wrap" }, table)]);
}

const changeTable = () =>
  new LiveTable(
    [
      { name: "changes.of", sign: row => `${row.kind} ${row.name} ${row.tier} ${row.vision} ${row.note}`, draw: row => h("div", {}, h("a", { href: `#/changes/${row.id}` }, target(row)), row.note ? h("small", { class: "sub" }, row.note) : null) },
      { name: "changes.set", class: "wide", sign: row => JSON.stringify(row.set), draw: row => h("div", {}, sets(row)) },
      { name: "changes.share", sign: shareText, draw: share },
      { name: "changes.state", sign: row => `${row.state} ${row.problem}`, draw: stateFlag },
      { name: "changes.begins", sign: begins },
      { name: "changes.ends", sign: ends },
      { name: "changes.who", sign: row => (row.who === "(open)" ? t("audit.open") : row.who) },
    ],
    "changes.title",
  );
