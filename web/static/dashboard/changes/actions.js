// What an operator does with a change: another share, another end, keep it, take it back.

import { call, explain } from "../../common/api.js";
import { percent } from "../../common/format.js";
import { t } from "../../common/i18n.js";
import { askAgain, toast } from "../../common/page.js";
import { field, line, openForm } from "../keys/form.js";

const pathOf = ({ id }) => `/api/admin/changes/${encodeURIComponent(id)}`;

/** Give it another share of the tasks. */
export function widen(change, done) {
  const share = field("rollout", line("change-share", { type: "number", min: 1, max: 100, step: 1, value: change.rollout }), t("changes.share.field"), t("changes.share.hint"));
  openForm({
    title: t("changes.widen.title", { name: change.name }),
    content: [share.element],
    fields: [share],
    action: t("changes.widen"),
    work: async () => {
      const rollout = Number(share.control.value);
      if (!Number.isInteger(rollout) || rollout < 1 || rollout > 100) return t("changes.share.wrong");
      await call(pathOf(change), { method: "PATCH", body: { rollout } });
      toast(t("changes.done.widen", { name: change.name, share: percent(rollout / 100) }), "good");
      done();
      return null;
    },
  });
  share.control.focus();
}

/** Let it end by itself, or not. */
export function end(change, done) {
  const local = ms => new Date(ms - new Date(ms).getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
  const until = field("until", line("change-until", { type: "datetime-local", value: change.until ? local(change.until) : "" }), t("changes.end.field"), t("changes.end.hint"));
  openForm({
    title: t("changes.end.title", { name: change.name }),
    content: [until.element],
    fields: [until],
    action: t("changes.end"),
    work: async () => {
      const { value } = until.control;
      await call(pathOf(change), { method: "PATCH", body: { until: value ? new Date(value).getTime() : null } });
      toast(t("done.change", { name: change.name }), "good");
      done();
    },
  });
}

/** Let it hold for all tasks, without an end. */
export const keep = (change, done) => carryOut(change, "keep", "keep", false, done);

/** End it now. */
export const takeBack = (change, done) => carryOut(change, "take-back", "takeBack", true, done);

async function carryOut(change, path, name, danger, done) {
  const question = { title: t(`changes.${name}.title`, { name: change.name }), action: t(`changes.${name}`), danger };
  if (!(await askAgain({ ...question, text: t(`changes.${name}.text`) }))) return;
  try {
    await call(`${pathOf(change)}/${path}`, { method: "POST" });
    toast(t(`changes.done.${name}`, { name: change.name }), "good");
  } catch (problem) {
    toast(explain(problem), "bad");
  }
  done();
}
