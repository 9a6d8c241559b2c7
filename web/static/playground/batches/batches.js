// Batches: made of prompts or of a file, their counts as they go, what became of them; and the caller's files.

import { call, explain } from "../../common/api.js";
import { byId, h, replace } from "../../common/dom.js";
import { dateTime, number, when } from "../../common/format.js";
import { t } from "../../common/i18n.js";
import { PagedTable } from "../../common/paged.js";
import { askAgain, copyButton, openDialog, toast } from "../../common/page.js";
import { LiveTable, gauge, rowButton } from "../../common/table.js";
import { download, firstLines } from "../../common/transfer.js";
import { CodePanel } from "../code/panel.js";
import { FilesPanel, listed, pageOf } from "./files.js";
import { BatchForm } from "./form.js";
import { UNDER_WAY, answerOf, progressOf } from "./lines.js";

const PAGE = 10;
const SOON_MS = 1500;
const LATER_MS = 10_000;
const WINDOW = "24h";
const MOST_ERRORS = 3;
const MOST_RESULTS = 50;
const MOST_CHARACTERS = 1_000_000; // read for them

export class BatchesView {
  /** `story(told)`: for the code panel. `said(text)`: news for screen readers. `who()`: the caller's headers { named, wire }. */
  constructor({ story, said, who }) {
    this._story = story;
    this._said = said;
    this._who = who;
    this._code = new CodePanel(byId("batch-code"), "batch-code-title");
    this._element = byId("batches");
    this._table = null;
    this._made = null; // the batch whose code is shown
    this._states = new Map();
    this._ready = false; // it is known that somebody may ask
    this._wanted = false;
    const wire = () => this._who().wire;
    this._files = new FilesPanel(byId("files"), { who: wire, onFiles: files => this._form.setFiles(files) });
    const make = (input, endpoint) => call("/v1/batches", { body: { input_file_id: input, endpoint, completion_window: WINDOW }, headers: wire() });
    this._form = new BatchForm(byId("batch-form"), { who: wire, make, onUpload: () => this._files.refresh(), onMade: made => this._onMade(made) });
  }

  /** Whether the reader sees it: only then it asks the gateway. */
  set shown(shown) {
    this._wanted = shown;
    this._openOrClose();
  }

  setMe(me) {
    this._close(); // what was listed is somebody else's
    this._ready = Boolean(me);
    this._openOrClose();
  }

  setModels(models) {
    this._form.setModels(models);
  }

  draw() {
    this._form.draw();
    this._files.draw();
    this._drawTable();
    this._code.draw();
  }

  _openOrClose() {
    if (!this._wanted || !this._ready) {
      this._close();
      return;
    }
    if (this._table !== null) return;
    this._table = new PagedTable(this._rows(), {
      ...listed,
      path: after => pageOf("/v1/batches", after, PAGE),
      empty: "batches.empty",
      headers: () => this._who().wire,
      againMs: rows => (rows.some(({ status }) => UNDER_WAY.has(status)) ? SOON_MS : LATER_MS),
      onRows: rows => this._onRows(rows),
    });
    this._drawTable();
    this._table.read();
    this._files.open();
  }

  _close() {
    this._table?.close();
    this._table = null;
    this._files.close();
    this._states.clear();
  }

  _drawTable() {
    if (this._table === null) return;
    replace(this._element, h("div", { class: "panel-head" }, h("h2", { id: "batches-title" }, t("batches.title")), h("span", { class: "muted small" }, t("batches.hint"))), this._table.element);
  }

  _onMade(made) {
    toast(t("batch.made", { name: made.name }), "good");
    this._made = made;
    this._states.set(made.batch.id, made.batch.status); // it may have ended before it is looked at
    this._tell();
    this._table?.read();
  }

  _tell() {
    const { batch, ...made } = this._made;
    const step = { do: "batch", ...made, window: WINDOW, batchId: batch.id, outputId: batch.output_file_id ?? null };
    this._code.show(this._story({ headers: this._who().named, steps: [step] }));
  }

  /** What has become of batches since the last look. */
  _onRows(rows) {
    let ended = false;
    for (const batch of rows) {
      const before = this._states.get(batch.id);
      this._states.set(batch.id, batch.status);
      if (!before || before === batch.status || UNDER_WAY.has(batch.status)) continue;
      ended = true;
      this._said(t("said.batch", { id: batch.id, state: t(`batch.${batch.status}`) }));
      if (batch.id !== this._made?.batch.id) continue;
      this._made = { ...this._made, batch };
      this._tell();
    }
    if (ended) this._files.refresh(); // there are its results
  }

  async _cancel(batch) {
    const sure = await askAgain({ title: t("batch.cancel"), text: t("batch.cancel.sure"), action: t("batch.cancel"), danger: true });
    if (!sure) return;
    try {
      await call(`/v1/batches/${batch.id}/cancel`, { method: "POST", headers: this._who().wire });
    } catch (problem) {
      toast(explain(problem), "bad");
    }
    this._table?.read();
  }

  async _results(batch, fileId) {
    const path = `/v1/files/${fileId}/content`;
    const headers = this._who().wire;
    try {
      const { lines, whole } = await firstLines(path, { headers, lines: MOST_RESULTS, characters: MOST_CHARACTERS });
      const rows = lines.map(answerOf).map(({ id, ok, text }) => h("tr", {}, h("th", { scope: "row" }, h("code", {}, id)), h("td", { class: ok ? "text" : "text bad" }, text)));
      const save = () => download(path, `${fileId}.jsonl`, { headers }).catch(problem => toast(explain(problem), "bad"));
      const dialog = openDialog(
        t("results.title", { id: batch.id }),
        h(
          "div",
          { class: "results" },
          whole ? null : h("p", { class: "hint" }, t("results.first", { n: lines.length })),
          h(
            "div",
            { class: "table-wrap", tabindex: 0, role: "region", "aria-label": t("results.label") },
            h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, t("results.line")), h("th", { scope: "col" }, t("results.answer")))), h("tbody", {}, rows)),
          ),
          h(
            "div",
            { class: "actions" },
            h("button", { type: "button", class: "primary", id: "results-save", on: { click: save } }, t("files.download")),
            h("button", { type: "button", class: "quiet", on: { click: () => dialog.close() } }, t("close")),
          ),
        ),
      );
    } catch (problem) {
      toast(explain(problem), "bad");
    }
  }

  _rows() {
    const endedAt = batch => batch.completed_at ?? batch.failed_at ?? batch.expired_at ?? batch.cancelled_at ?? null;
    const columns = [
      {
        name: "batches.batch",
        class: "wide",
        sign: batch => batch.id,
        draw: batch => h("div", {}, h("code", {}, batch.id), h("span", { class: "sub" }, batch.endpoint, copyButton(() => batch.id, t("batches.copy", { id: batch.id })))),
      },
      {
        name: "batches.state",
        sign: batch => JSON.stringify([batch.status, batch.errors]),
        draw: batch => h("div", {}, h("span", { class: "chip", dataset: { batch: batch.status } }, t(`batch.${batch.status}`)), errorsOf(batch)),
      },
      {
        name: "batches.progress",
        class: "progress",
        sign: batch => JSON.stringify(progressOf(batch)),
        draw: batch => {
          const { total, done, failed, share } = progressOf(batch);
          if (!total) return null;
          const text = failed ? t("batches.counts.failed", { done: number(done), total: number(total), failed: number(failed) }) : t("batches.counts", { done: number(done), total: number(total) });
          return gauge(text, share, { tone: failed === total ? "var(--bad)" : failed ? "var(--warn)" : null });
        },
      },
      {
        name: "batches.created",
        class: "num",
        sign: batch => `${batch.created_at}/${endedAt(batch)}`,
        draw: batch => h("span", { title: dateTime(batch.created_at * 1000) }, when(batch.created_at * 1000)),
      },
      {
        name: "",
        class: "end",
        sign: batch => [batch.status, batch.output_file_id, batch.error_file_id].join("/"),
        draw: (batch, now) => {
          const button = (action, work, more = {}) => rowButton(action, t(`batches.${action}`), work, { label: t(`batches.${action}.label`, { id: batch.id }), ...more });
          return h(
            "div",
            {},
            batch.output_file_id ? button("results", () => this._results(now(), now().output_file_id)) : null,
            batch.error_file_id ? button("errors", () => this._results(now(), now().error_file_id)) : null,
            UNDER_WAY.has(batch.status) ? button("cancel", () => this._cancel(now()), { danger: true, disabled: batch.status === "cancelling" }) : null,
          );
        },
      },
    ];
    return new LiveTable(columns, "batches.title");
  }
}

/** What is wrong with the file of a batch that was refused: the first lines of it. */
function errorsOf({ errors }) {
  const all = errors?.data ?? [];
  const shown = all.slice(0, MOST_ERRORS).map(({ line, message }) => h("span", { class: "sub bad" }, line ? t("batches.line", { n: line, message }) : message));
  return all.length > MOST_ERRORS ? [...shown, h("span", { class: "sub" }, t("batches.moreErrors", { n: number(all.length - MOST_ERRORS) }))] : shown;
}
