// Every setting of the replica that answers, as it holds now: its value, where it comes from, since when, and who changed it.

import { call, explain } from "../common/api.js";
import { h, later, replace, setText } from "../common/dom.js";
import { dateTime, number } from "../common/format.js";
import { onLanguage, t } from "../common/i18n.js";
import { LiveTable } from "../common/table.js";
import { valueText } from "./actions.js";
import { panel } from "./parts.js";

const SOURCES = ["changed", "replica", "file", "environment", "flag", "generated", "default"];
const SET = "(set)";
const AGAIN_MS = 30_000;

export class SettingsView {
  /** `wanted`: URLSearchParams of the address: `text`, `source`, and `all` for those too that have their defaults. */
  constructor(wanted) {
    this._stopped = false;
    this._newest = undefined;
    this._asked = 0;
    this._calledOff = () => {};
    this._answer = null;
    this._problem = h("div", { role: "alert" });
    this._notices = h("div");
    this._of = h("p", { class: "muted small settings-of" });
    this._empty = h("p", { class: "empty", hidden: true, dataset: { t: "settings.empty" } }, t("settings.empty"));
    this._count = h("span", { class: "muted small count", role: "status" });
    this._text = h("input", { id: "find-setting", type: "search", placeholder: t("settings.find"), dataset: { tPlaceholder: "settings.find" }, autocomplete: "off", spellcheck: "false", maxlength: 256, value: wanted.get("text") ?? "", on: { input: () => this._go() } });
    const chosen = SOURCES.includes(wanted.get("source")) ? wanted.get("source") : "";
    const option = (value, key) => h("option", { value, selected: value === chosen, dataset: { t: key } }, t(key));
    this._source = h("select", { id: "setting-source", on: { change: () => this._go() } }, option("", "settings.any"), SOURCES.map(name => option(name, `settings.source.${name}`)));
    this._all = h("input", { id: "all-settings", type: "checkbox", checked: wanted.has("all"), on: { change: () => this._go() } });
    const hidden = (id, key) => h("label", { for: id, class: "visually-hidden", dataset: { t: key } }, t(key));
    const find = h(
      "form",
      { class: "settings-find", role: "search", on: { submit: event => event.preventDefault() } },
      hidden("find-setting", "settings.find"),
      this._text,
      hidden("setting-source", "settings.source"),
      this._source,
      h("label", { class: "check" }, this._all, h("span", { dataset: { t: "settings.all" } }, t("settings.all"))),
      this._count,
    );
    this._table = settingsTable();
    this._table.element.hidden = true;
    this.element = panel("settings", "settings.title", { hint: "settings.hint" }, this._problem, this._notices, this._of, find, this._empty, this._table.element);
    this._forget = onLanguage(() => this._draw());
    this._read();
  }

  close() {
    this._stopped = true;
    this._calledOff();
    this._forget();
    this._table.close();
  }

  /** A picture of the feed: each change is written to the audit record. */
  show(picture) {
    if (picture.audit === this._newest) return;
    const first = this._newest === undefined;
    this._newest = picture.audit;
    if (!first) this._read();
  }

  /** What is looked for stands in the address, without an entry of the history for each letter. */
  _go() {
    const query = new URLSearchParams();
    if (this._text.value.trim()) query.set("text", this._text.value.trim());
    if (this._source.value) query.set("source", this._source.value);
    if (this._all.checked) query.set("all", "1");
    history.replaceState(history.state, "", query.size ? `#/settings?${query}` : "#/settings");
    this._draw();
  }

  async _read() {
    this._calledOff();
    const mine = (this._asked += 1);
    try {
      const answer = await call("/api/admin/settings");
      if (this._stopped || mine !== this._asked) return;
      this._answer = answer;
      replace(this._problem);
      this._draw();
    } catch (problem) {
      if (this._stopped || mine !== this._asked) return;
      replace(this._problem, h("p", { class: "notice bad" }, explain(problem)));
    }
    this._calledOff = later(() => this._read(), AGAIN_MS);
  }

  _draw() {
    const answer = this._answer;
    if (!answer) return;
    const text = this._text.value.trim().toLowerCase();
    const source = this._source.value;
    const all = this._all.checked || source === "default";
    const shown = answer.settings.filter(
      row =>
        (all || row.differs || row.otherwise) &&
        (!source || row.source === source) &&
        (!text || row.name.toLowerCase().includes(text) || shownValue(row.value).toLowerCase().includes(text)),
    );
    this._table.update(shown, row => row.name);
    this._table.element.hidden = shown.length === 0;
    this._empty.hidden = shown.length > 0;
    setText(this._count, t("settings.count", { n: number(shown.length), of: number(answer.settings.length) }));
    const { file } = answer;
    const read = file ? t("settings.file", { path: file.path, modified: dateTime(file.modifiedAt), read: dateTime(answer.readAt) }) : t("settings.nofile");
    setText(this._of, `${t("settings.of", answer)} · ${read}`);
    replace(this._notices, notices(answer).map(([kind, words]) => h("p", { class: `notice ${kind}` }, words)));
  }
}

/** What the reader should know before the values: in what they are not the whole truth. */
function notices(answer) {
  const found = [];
  if (answer.storeAway) found.push(["bad", t("settings.away", { why: answer.storeAway })]);
  if (answer.reloadRefused) found.push(["bad", t("settings.refused", { at: dateTime(answer.reloadRefused.at), why: answer.reloadRefused.why })]);
  if (answer.settings.some(row => row.source === "replica" || row.otherwise?.source === "replica")) found.push(["warn", t("settings.other", { replica: answer.inForce.replica, at: dateTime(answer.inForce.modifiedAt) })]);
  for (const { replica, host, differs } of answer.replicas) {
    const what = differs.map(name => t(`settings.differs.${name}`)).join(", ");
    if (what) found.push(["warn", t("settings.differs", { replica: host ? `${replica} (${host})` : replica, what })]);
  }
  if (answer.more) found.push(["warn", t("settings.more")]);
  return found;
}

/** A value as it would be written in the file: no number has separators. */
function shownValue(value) {
  if (value === SET) return t("settings.set");
  if (Array.isArray(value)) return value.map(String).join(", ") || t("value.none");
  return typeof value === "number" ? String(value) : valueText(value);
}

const sourceText = ({ source, where }) => (where ? `${t(`settings.source.${source}`)}: ${where}` : t(`settings.source.${source}`));

/** What lies below a change, or waits for a restart. */
const below = row => [
  row.otherwise ? t("settings.otherwise", { value: shownValue(row.otherwise.value), source: sourceText(row.otherwise) }) : "",
  row.afterRestart ? t("settings.restart", { value: shownValue(row.afterRestart.value), source: sourceText(row.afterRestart) }) : "",
];

function drawValue(row) {
  const [otherwise, restart] = below(row);
  return h(
    "div",
    { class: "setting-value" },
    shownValue(row.value),
    otherwise ? h("span", { class: "sub" }, otherwise) : null,
    restart ? h("span", { class: "sub warn" }, restart) : null,
  );
}

const TONES = { changed: "warn", replica: "warn", file: "info", environment: "info", flag: "info", generated: "good" };

function drawSource(row) {
  if (row.follows) return h("span", { class: "muted" }, t("settings.follows", { name: row.follows }));
  if (row.source === "default") return h("span", { class: "muted" }, t("settings.source.default"));
  return h("span", { class: "who" }, h("span", { class: `flag ${TONES[row.source] ?? ""}` }, t(`settings.source.${row.source}`)), row.where ? h("small", {}, row.where) : null);
}

const OPEN = "(open)";
const who = row => (row.by === OPEN ? t("audit.open") : (row.by ?? "–"));

const settingsTable = () =>
  new LiveTable(
    [
      { name: "settings.name", sign: row => row.name, draw: row => h("span", { class: "setting-name" }, row.name), sort: row => row.name },
      { name: "settings.value", class: "wide", sign: row => JSON.stringify([row.value, ...below(row)]), draw: drawValue },
      { name: "settings.default", sign: row => shownValue(row.default), draw: row => h("span", { class: "setting-value muted" }, shownValue(row.default)) },
      { name: "settings.from", sign: row => `${row.follows} ${sourceText(row)}`, draw: drawSource, sort: row => SOURCES.indexOf(row.source) },
      { name: "settings.since", sign: row => (row.since ? dateTime(row.since) : "–"), sort: row => row.since },
      { name: "settings.by", sign: who },
    ],
    "settings.title",
  );
