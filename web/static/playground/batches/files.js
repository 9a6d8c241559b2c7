// The caller's files: upload with its progress, list, download, delete.

import { call, explain } from "../../common/api.js";
import { byId, h, replace, setText } from "../../common/dom.js";
import { bytes, dateTime, percent, when } from "../../common/format.js";
import { t } from "../../common/i18n.js";
import { PagedTable } from "../../common/paged.js";
import { askAgain, copyButton, toast } from "../../common/page.js";
import { LiveTable, rowButton } from "../../common/table.js";
import { download, upload } from "../../common/transfer.js";

const PAGE = 20;
const PURPOSES = ["batch", "user_data", "vision", "assistants", "fine-tune", "evals"];

/** A list of OpenAI's as PagedTable reads it. */
export const listed = { rowsOf: answer => answer.data, nextOf: answer => (answer.has_more ? answer.last_id : null), keyOf: row => row.id };
export const pageOf = (path, after, size) => `${path}?${new URLSearchParams({ limit: size, ...(after ? { after } : {}) })}`;

/** Send a file with this purpose, and show in `box` how far it is, with a button to stop it; what the gateway says of it. */
export async function uploadInto(box, file, purpose, headers) {
  const form = new FormData();
  form.append("purpose", purpose);
  form.append("file", file, file.name);
  const leaving = new AbortController();
  const bar = h("progress", { max: 1, value: 0, "aria-label": t("files.uploading", { name: file.name }) });
  const told = h("span", { class: "num" });
  const stop = h("button", { type: "button", class: "small", dataset: { action: "stop" }, on: { click: () => leaving.abort() } }, t("files.stop"));
  box.hidden = false;
  replace(box, h("span", { class: "name" }, file.name), bar, told, stop);
  const onProgress = (sent, total) => {
    bar.value = total ? sent / total : 0;
    setText(told, sent < total ? t("files.sent", { share: percent(sent / total), size: bytes(total) }) : t("files.storing"));
  };
  onProgress(0, file.size);
  try {
    return await upload("/v1/files", form, { headers, onProgress, signal: leaving.signal });
  } finally {
    box.hidden = true;
    replace(box);
  }
}

export class FilesPanel {
  /** `who()`: the headers of the caller. `onFiles(files)`: told of those that are known. */
  constructor(element, { who, onFiles }) {
    this._element = element;
    this._who = who;
    this._onFiles = onFiles;
    this._table = null;
  }

  open() {
    this._table ??= new PagedTable(this._rows(), {
      ...listed,
      path: after => pageOf("/v1/files", after, PAGE),
      empty: "files.empty",
      headers: this._who,
      onRows: rows => this._onFiles(rows),
    });
    this.draw();
    this.refresh();
  }

  close() {
    this._table?.close();
    this._table = null;
  }

  refresh() {
    this._table?.read();
  }

  draw() {
    if (this._table === null) return;
    const input = h("input", { type: "file", id: "file-input", "aria-label": t("files.choose") });
    const purposes = PURPOSES.map(purpose => h("option", { value: purpose, selected: purpose === (byId("file-purpose")?.value ?? "batch") }, purpose));
    const send = event => {
      event.preventDefault();
      if (input.files.length) this._upload(input);
      else input.focus();
    };
    replace(
      this._element,
      h("div", { class: "panel-head" }, h("h2", { id: "files-title" }, t("files.title")), h("span", { class: "muted small" }, t("files.hint"))),
      h(
        "form",
        { class: "row upload", on: { submit: send } },
        h("div", { class: "field grow" }, h("label", { for: "file-input" }, t("files.choose")), input),
        h("div", { class: "field" }, h("label", { for: "file-purpose" }, t("files.purpose")), h("select", { id: "file-purpose" }, purposes)),
        h("button", { type: "submit", id: "file-send" }, t("files.upload")),
      ),
      h("div", { class: "upload-progress", id: "file-progress", hidden: true }),
      h("p", { class: "notice bad", id: "files-problem", role: "alert", hidden: true }),
      this._table.element,
    );
  }

  async _upload(input) {
    const button = byId("file-send");
    button.disabled = true;
    this._problem(null);
    try {
      const file = await uploadInto(byId("file-progress"), input.files[0], byId("file-purpose").value, this._who());
      toast(t("files.uploaded", { name: file.filename, size: bytes(file.bytes) }), "good");
      input.value = "";
      this.refresh();
    } catch (problem) {
      if (problem.name !== "AbortError") this._problem(problem);
    } finally {
      button.disabled = false;
    }
  }

  _problem(problem) {
    const box = byId("files-problem");
    box.hidden = problem === null;
    setText(box, problem === null ? "" : explain(problem));
  }

  async _save(file) {
    try {
      await download(`/v1/files/${file.id}/content`, file.filename, { headers: this._who() });
    } catch (problem) {
      toast(explain(problem), "bad");
    }
  }

  async _delete(file) {
    const sure = await askAgain({ title: t("files.delete"), text: t("files.delete.sure", { name: file.filename }), action: t("files.delete"), danger: true });
    if (!sure) return;
    try {
      await call(`/v1/files/${file.id}`, { method: "DELETE", headers: this._who() });
      toast(t("files.deleted", { name: file.filename }), "good");
      this.refresh();
    } catch (problem) {
      toast(explain(problem), "bad");
    }
  }

  _rows() {
    const columns = [
      {
        name: "files.name",
        class: "wide",
        sign: file => `${file.filename}/${file.id}`,
        draw: file => h("div", {}, h("span", { class: "name" }, file.filename), h("span", { class: "sub" }, h("code", {}, file.id), copyButton(() => file.id, t("files.copy", { name: file.filename })))),
      },
      { name: "files.purpose", sign: file => file.purpose },
      { name: "files.size", class: "num", sign: file => bytes(file.bytes) },
      {
        name: "files.created",
        class: "num",
        sign: file => `${file.created_at}/${file.expires_at}`,
        draw: ({ created_at: made, expires_at: until }) => h("div", { title: dateTime(made * 1000) }, when(made * 1000), until ? h("span", { class: "sub" }, t("files.until", { at: when(until * 1000) })) : null),
      },
      {
        name: "",
        class: "end",
        sign: () => "",
        draw: (file, now) =>
          h(
            "div",
            {},
            rowButton("download", t("files.download"), () => this._save(now()), { label: t("files.download.label", { name: file.filename }) }),
            rowButton("delete", t("files.delete"), () => this._delete(now()), { label: t("files.delete.label", { name: file.filename }), danger: true }),
          ),
      },
    ];
    return new LiveTable(columns, "files.title");
  }
}
