// Who pays for the tasks of a key: its quota, how those who pay stand, grants, and the ledger.

import { call, explain } from "../../common/api.js";
import { h, replace } from "../../common/dom.js";
import { dateTime, exactCredits } from "../../common/format.js";
import { onLanguage, t } from "../../common/i18n.js";
import { askAgain, toast } from "../../common/page.js";
import { PagedTable } from "../../common/paged.js";
import { LiveTable, meter, rowButton } from "../../common/table.js";
import { panel } from "../parts.js";
import { patch } from "./actions.js";
import { actButton, choice, field, line, openForm } from "./form.js";
import { changeable } from "./keys.js";

const PAGE = 20;
const GRANT_BYTES = 12;

export class Quota {
  /** `again()`: read the key anew; `tiers()`: those that queues have. */
  constructor(id, { again, tiers }) {
    this._id = id;
    this._again = again;
    this._tiers = tiers;
    this._row = null;
    this._who = ""; // whose standing is shown, as the calls are asked for it
    this._standing = null;
    this._asked = 0;
    this._terms = h("p");
    this._problem = h("div", { role: "alert" });
    this._facts = h("div");
    this._remove = actButton("remove-quota", "action.remove", () => this._take());
    this._change = actButton("change-quota", "action.change", () => this._ask());
    this._grant = actButton("grant", "quota.grant", () => this._give(this._subject), "primary");
    this._users = new PagedTable(userTable(id, row => this._give({ user: row.user ?? row.key })), {
      path: after => `/api/admin/quota?${new URLSearchParams({ key: id, limit: PAGE, after })}`,
      rowsOf: answer => answer.rows.filter(row => row.of === "user" || row.granted || row.spent),
      keyOf: row => row.user ?? "",
      empty: "quota.users.empty",
    });
    this._ledger = new PagedTable(ledgerTable(), {
      path: after => `/api/admin/quota/ledger?${this._who}&${new URLSearchParams({ limit: PAGE, after })}`,
      rowsOf: answer => answer.rows,
      keyOf: row => `${row.kind} ${row.id} ${row.fund} ${row.ends}`,
      empty: "ledger.empty",
    });
    this._quota = panel("quota", "quota.title", { end: [this._remove, this._change, this._grant] }, this._terms, this._problem, this._facts, this._users.element);
    this._rows = panel("ledger", "ledger.title", { hint: "ledger.hint" }, this._ledger.element);
    this.element = h("div", { class: "grid" }, this._quota, this._rows);
    this._forget = onLanguage(() => this._row && this._draw());
  }

  close() {
    this._asked += 1;
    this._forget();
    this._users.close();
    this._ledger.close();
  }

  /** The key, and the user of it whom the page is about, "" for none. */
  show(row, user) {
    this._row = row;
    const each = row.settings.quota?.of === "user";
    this._subject = !each ? { key: this._id } : user ? { user: `${this._id}/${user}` } : null;
    const who = this._subject ? String(new URLSearchParams(this._subject)) : "";
    if (who !== this._who) {
      this._standing = null;
      this._ledger.clear();
    }
    this._who = who;
    this._users.element.hidden = Boolean(who);
    this._draw();
    this._read();
  }

  async _read() {
    const mine = (this._asked += 1);
    if (!this._who) {
      replace(this._problem);
      await this._users.refresh();
      return;
    }
    try {
      const { rows } = await call(`/api/admin/quota?${this._who}&limit=1`);
      if (mine !== this._asked) return;
      this._standing = rows[0];
      replace(this._problem);
      this._draw();
      if (!this._rows.hidden) await this._ledger.refresh();
    } catch (problem) {
      if (mine === this._asked) replace(this._problem, h("p", { class: "notice bad" }, explain(problem)));
    }
  }

  _draw() {
    const row = this._row;
    const standing = this._standing;
    const { quota } = row.settings;
    const ever = Boolean(quota || standing?.granted || standing?.spent);
    this._terms.textContent = quota ? termsOf(quota) : t("quota.nobody");
    this._change.hidden = !changeable(row);
    this._remove.hidden = !changeable(row) || !quota;
    this._grant.hidden = row.state === "revoked" || (Boolean(this._who) && !ever);
    this._rows.hidden = !this._who || !ever;
    replace(this._facts, standing && ever ? standingOf(standing) : null);
    this._facts.hidden = !standing || !ever;
  }

  /** Ask what the quota is to be. */
  _ask() {
    const { settings } = this._row;
    const before = settings.quota;
    const tiers = [...new Set([before?.otherwise, ...this._tiers()])].filter(Boolean); // also one that no queue has any more
    const part = (name, control) => field(`quota.${name}`, control, t(`quota.${name}`), t(`quota.${name}.hint`));
    const fields = [
      part("of", choice("quota-of", ["key", "user"].map(name => [name, t(`quota.of.${name}`)]), before?.of)),
      part("budget", line("quota-budget", { inputmode: "decimal", value: before?.budget ?? "", maxlength: 40 })),
      part("per", choice("quota-per", [["", t("value.none")], ...["day", "month"].map(name => [name, t(`quota.per.${name}`)])], before?.per ?? "")),
      part("otherwise", choice("quota-otherwise", [["", t("quota.otherwise.none")], ...tiers.map(name => [name, t("quota.otherwise.tier", { tier: name })])], before?.otherwise ?? "")),
    ];
    openForm({
      title: t("quota.ask", { id: this._id }),
      content: [h("div", { class: "settings" }, fields.map(one => one.element))],
      fields,
      action: t("do.change"),
      work: async () => {
        await patch(this._id, { quota: Object.fromEntries(fields.map(({ name, control }) => [name.slice("quota.".length), control.value.trim() || null])) });
        this._again();
      },
    });
  }

  async _take() {
    if (!(await askAgain({ title: t("quota.remove", { id: this._id }), text: t("quota.remove.text"), action: t("action.remove"), danger: true }))) return;
    try {
      await patch(this._id, { quota: null });
    } catch (problem) {
      toast(explain(problem), "bad");
    }
    this._again();
  }

  /** Ask how much to grant to a key or user; `subject` null: also to which user. */
  _give(subject) {
    const id = `dashboard-${randomHex()}`; // made once: whoever clicks twice, or again after an answer that was lost, grants once
    const user = field("user", line("grant-user", { maxlength: 256 }), t("quota.user"), t("quota.user.hint", { id: this._id }));
    const credits = field("credits", line("grant-credits", { maxlength: 40 }), t("quota.credits"), t("quota.credits.hint"));
    const note = field("note", line("grant-note", { maxlength: 500 }), t("quota.note"), t("quota.note.hint"));
    const fields = [...(subject ? [] : [user]), credits, note];
    const name = subject && (subject.user ?? subject.key);
    openForm({
      title: name ? t("quota.ask.grant", { name }) : t("quota.ask.grant.user"),
      content: fields.map(one => one.element),
      fields,
      action: t("quota.grant.do"),
      work: async () => {
        const whom = subject ?? { user: `${this._id}/${user.control.value.trim()}` };
        const done = await call("/api/admin/quota/grants", { body: { ...whom, id, credits: credits.control.value.trim(), note: note.control.value.trim() } });
        toast([t("quota.granted", { n: exactCredits(done.credits), name: done.user ?? done.key, left: exactCredits(done.balance) }), ...done.notes].join(" "), "good");
        if (this._who) this._ledger.read();
        this._again();
      },
    });
    fields[0].control.focus();
  }
}

const randomHex = () => [...crypto.getRandomValues(new Uint8Array(GRANT_BYTES))].map(byte => byte.toString(16).padStart(2, "0")).join("");

/** A quota in a sentence or two. */
function termsOf({ of, budget, per, otherwise }) {
  const who = t(`quota.pays.${of ?? "key"}`);
  const from = budget === null || budget === undefined ? t("quota.from.grants") : t(`quota.from.${per}`, { n: exactCredits(budget) });
  return `${who} ${from} ${otherwise ? t("quota.else.tier", { tier: otherwise }) : t("quota.else.refused")}`;
}

/** How somebody stands, in credits. */
function standingOf({ available, balance, granted, spent, held, budget, active }) {
  const facts = [
    ["quota.available", exactCredits(available)],
    ["quota.balance", exactCredits(balance), t("quota.balance.more", { granted: exactCredits(granted), spent: exactCredits(spent) }), balance < 0],
    ["quota.held", exactCredits(held)],
    budget && ["quota.left", t("quota.left.of", { n: exactCredits(budget.remaining), limit: exactCredits(budget.limit) }), t("quota.renews", { at: dateTime(budget.ends) }), false, meter(budget.limit ? budget.remaining / budget.limit : 0)],
  ];
  return [
    h(
      "dl",
      { class: "facts standing" },
      facts.filter(Boolean).map(([key, value, more, bad, bar]) => h("div", {}, h("dt", {}, t(key)), h("dd", { class: bad ? "bad" : null, dataset: { fact: key } }, value, bar), more ? h("dd", { class: "more" }, more) : null)),
    ),
    active ? null : h("p", { class: "hint" }, t("quota.idle")),
  ];
}

function userTable(id, give) {
  const nameOf = row => (row.user?.startsWith(`${id}/`) ? row.user.slice(id.length + 1) : "");
  const amount = (name, value) => ({ name, class: "num", sign: row => value(row) });
  return new LiveTable(
    [
      {
        name: "quota.user",
        sign: row => row.user ?? row.key,
        draw: row => h("span", { class: "who" }, nameOf(row) ? h("a", { href: `#/keys/${id}?${new URLSearchParams({ user: nameOf(row) })}` }, nameOf(row)) : t(row.user ? "quota.unnamed" : "quota.itself")),
      },
      amount("quota.available", row => exactCredits(row.available)),
      amount("quota.left", row => (row.budget ? t("quota.left.of", { n: exactCredits(row.budget.remaining), limit: exactCredits(row.budget.limit) }) : "–")),
      amount("quota.balance", row => exactCredits(row.balance)),
      amount("quota.spent", row => exactCredits(row.spent)),
      amount("quota.held", row => exactCredits(row.held)),
      { name: "", class: "end", sign: row => String(Boolean(row.user)), draw: (row, now) => (row.user ? h("div", {}, rowButton("grant-user", t("quota.grant"), () => give(now()), { label: t("quota.ask.grant", { name: row.user }) })) : []) },
    ],
    "quota.users",
  );
}

const ledgerTable = () =>
  new LiveTable(
    [
      { name: "ledger.at", sign: row => dateTime(row.at) },
      {
        name: "ledger.what",
        class: "wide",
        sign: row => `${row.id} ${row.note} ${row.who}`,
        draw: row =>
          h(
            "span",
            { class: "who" },
            h("small", {}, row.kind === "task" ? t("ledger.task") : t("ledger.grant", { who: row.who })),
            row.kind === "task" ? h("a", { class: "id", href: `#/tasks/${row.id}` }, row.id) : row.note || h("span", { class: "id" }, row.id),
          ),
      },
      { name: "ledger.fund", class: "wide", sign: row => (row.fund === "granted" ? t("ledger.granted") : t(`ledger.${row.fund}`, { at: dateTime(row.ends) })) },
      { name: "ledger.held", class: "num", sign: row => (row.kind === "task" ? exactCredits(row.held) : "") },
      { name: "ledger.refunded", class: "num", sign: row => (row.kind === "task" ? exactCredits(row.refunded) : "") },
      { name: "ledger.amount", class: "num", sign: row => exactCredits(row.amount, "exceptZero") },
    ],
    "ledger.title",
  );
