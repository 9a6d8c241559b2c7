// What an operator does with a key: make one, rotate its secret, revoke it, change what it says.

import { call, explain } from "../../common/api.js";
import { h } from "../../common/dom.js";
import { t } from "../../common/i18n.js";
import { askAgain, copyButton, openDialog, toast } from "../../common/page.js";
import { choice, field, line, openForm, tick } from "./form.js";

const DAY_MS = 86_400_000;
const SCOPES = ["call", "viewer", "metrics", "admin"];
const KEEP = [["day", DAY_MS], ["week", 7 * DAY_MS], ["none", 0]];

export const pathOf = id => `/api/admin/keys/${encodeURIComponent(id)}`;

/** Change what a key says; the notes of the answer are told at once. */
export async function patch(id, values) {
  const { notes } = await call(pathOf(id), { method: "PATCH", body: values });
  toast([t("done.change", { name: id }), ...notes].join(" "), "good");
}

/** Show a secret, this once; `after` when it was noted. */
function tell({ id, kind, secret, notes, settings }, after) {
  const shown = h("code", { id: "new-secret", class: "secret" }, secret);
  const done = h("button", { type: "button", class: "primary", on: { click: () => dialog.close() } }, t("keys.noted"));
  const dialog = openDialog(
    t(kind === "worker" ? "keys.secret.worker" : "keys.secret.caller", { id }),
    h(
      "div",
      {},
      h("p", { class: "notice warn" }, t("keys.secret.once")),
      h("p", { class: "secret-row" }, shown, copyButton(() => secret, t("keys.secret.copy"))),
      settings.signing ? h("p", {}, t("keys.secret.signs")) : null,
      notes.map(note => h("p", { class: "notice" }, note)),
      h("div", { class: "actions" }, done),
    ),
    after,
  );
  dialog.addEventListener("cancel", event => event.preventDefault()); // Escape would lose it
}

/** Give a key another secret. `done` is called when it has it, `after` when that was noted. */
export function rotate(row, done, after) {
  const keep = field("keep_ms", choice("keep", KEEP.map(([name, ms]) => [String(ms), t(`keys.keep.${name}`)])), t("keys.keep"));
  openForm({
    title: t("keys.ask.rotate", { id: row.id }),
    content: [h("p", {}, t(`keys.ask.rotate.${row.kind}`)), keep.element],
    fields: [keep],
    action: t("keys.rotate"),
    work: async () => {
      tell(await call(`${pathOf(row.id)}/rotate`, { body: { keep_ms: Number(keep.control.value) } }), after);
      done();
    },
  });
}

/** End a key for good. */
export async function revoke(row, done) {
  if (row.kind === "worker") {
    const sure = await askAgain({ title: t("keys.ask.revoke", { id: row.id }), text: t("keys.ask.revoke.worker"), action: t("keys.revoke"), danger: true });
    if (sure) await carryOutRevoke(row, false, done);
    return;
  }
  const now = field("now", tick("revoke-now"), t("keys.revoke.now"));
  openForm({
    title: t("keys.ask.revoke", { id: row.id }),
    content: [h("p", {}, t("keys.ask.revoke.caller")), now.element],
    fields: [now],
    action: t("keys.revoke"),
    work: () => carryOutRevoke(row, now.control.checked, done),
    danger: true,
  });
}

async function carryOutRevoke(row, now, done) {
  try {
    const { cancelled, notes } = await call(`${pathOf(row.id)}/revoke`, { body: { now } });
    toast([t("keys.done.revoke", { id: row.id }), now ? t("done.cancel.all", { n: cancelled }) : "", ...notes].join(" "), "good");
  } catch (problem) {
    toast(explain(problem), "bad");
  }
  done();
}

/** Make a key. `tiers`: those that queues have. */
export function create(tiers, done, after) {
  const part = (name, control) => field(name, control, t(`keys.${name}`), t(`keys.${name}.hint`));
  const scopes = choice("key-scope", SCOPES.map(name => [name, t(`keys.scope.${name}`)]));
  const both = {
    kind: part("kind", choice("key-kind", ["caller", "worker"].map(name => [name, t(`keys.kind.${name}`)]))),
    id: part("id", line("key-id", { maxlength: 64 })),
    models: part("models", line("key-models", { placeholder: "*" })),
    expires: part("expires", line("key-expires", { type: "date" })),
    note: part("note", line("key-note", { maxlength: 500 })),
  };
  const callers = {
    scopes: field("scopes", scopes, t("keys.scope"), t("keys.scope.hint")),
    tier: part("tier", choice("key-tier", tiers.map(name => [name, name]), "free")),
    weight: part("weight", line("key-weight", { type: "number", min: 0.001, step: "any", placeholder: "1" })),
    delegating: field("delegating", tick("key-delegating"), t("keys.delegating")),
    signing: field("signing", tick("key-signing"), t("keys.signing")),
  };
  const box = h(
    "div",
    { class: "settings" },
    [both.kind, both.id, callers.scopes, callers.tier, both.models, callers.weight, both.expires, both.note, callers.delegating, callers.signing].map(one => one.element),
  );
  both.kind.control.addEventListener("change", () => {
    for (const one of Object.values(callers)) one.element.hidden = both.kind.control.value === "worker";
  });
  const value = ({ control }) => control.value.trim() || null;
  const wanted = () => {
    const names = both.models.control.value.split(",").map(name => name.trim()).filter(Boolean);
    const said = {
      kind: value(both.kind),
      id: value(both.id),
      note: value(both.note),
      models: names.length ? names : null,
      expires: value(both.expires) && new Date(`${value(both.expires)}T00:00`).getTime(),
    };
    if (said.kind === "worker") return said;
    const weight = value(callers.weight);
    return {
      ...said,
      scopes: [scopes.value],
      tier: value(callers.tier),
      weight: weight && Number(weight),
      delegating: callers.delegating.control.checked,
      signing: callers.signing.control.checked,
    };
  };
  openForm({
    title: t("keys.create.title"),
    content: [box],
    fields: [...Object.values(both), ...Object.values(callers)],
    action: t("keys.create"),
    work: async () => {
      tell(await call("/api/admin/keys", { body: wanted() }), after);
      done();
    },
  });
  both.id.control.focus();
}
