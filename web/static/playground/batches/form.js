// What a batch is made of: prompts that are written here, or a file of requests.

import { explain } from "../../common/api.js";
import { byId, h, replace, setText } from "../../common/dom.js";
import { bytes } from "../../common/format.js";
import { t } from "../../common/i18n.js";
import { uploadInto } from "./files.js";
import { ENDPOINTS, linesOf } from "./lines.js";

const NEW = ""; // of the files: one that is uploaded now
const SHOWN = 20; // of the lines of a batch in the code

export class BatchForm {
  /**
   * `who()`: the caller's headers. `make(inputFileId, endpoint)`: makes the batch. `onUpload()`: there is another file. `onMade(made)`: { endpoint,
   * name, lines, fileId, batch }.
   */
  constructor(form, { who, make, onUpload, onMade }) {
    Object.assign(this, { _form: form, _who: who, _make: make, _onUpload: onUpload, _onMade: onMade });
    this._models = [];
    this._files = [];
    this._source = "prompts";
    this._busy = false;
    form.addEventListener("submit", event => {
      event.preventDefault();
      this._send();
    });
    form.addEventListener("input", () => this._drawHint());
    this.draw();
  }

  setModels(models) {
    this._models = models;
    this._drawNames("batch-model", this._modelNames());
  }

  /** The caller's files, of which those are offered that a batch can be made of. */
  setFiles(files) {
    this._files = files.filter(({ purpose }) => purpose === "batch");
    this._drawNames("batch-file", this._fileNames());
    this._drawSource();
  }

  draw() {
    const value = (id, otherwise = "") => byId(id)?.value ?? otherwise;
    const [prompts, most] = [value("batch-prompts", t("batch.prompts.example")), value("batch-tokens")];
    const choice = name => {
      const change = () => {
        this._source = name;
        this._drawSource();
      };
      return h("label", {}, h("input", { type: "radio", name: "batch-source", value: name, checked: name === this._source, on: { change } }), h("span", {}, t(`batch.source.${name}`)));
    };
    const endpoint = value("batch-endpoint", ENDPOINTS[0]);
    replace(
      this._form,
      h("h2", { id: "batch-form-title" }, t("batch.title")),
      h("p", { class: "muted" }, t("batch.intro")),
      h("fieldset", {}, h("legend", {}, t("batch.source")), h("div", { class: "segmented" }, choice("prompts"), choice("file"))),
      h(
        "div",
        { class: "field" },
        h("label", { for: "batch-endpoint" }, t("batch.endpoint")),
        h("select", { id: "batch-endpoint" }, ENDPOINTS.map(path => h("option", { value: path, selected: path === endpoint }, path))),
      ),
      h(
        "div",
        { id: "batch-of-prompts" },
        h(
          "div",
          { class: "row" },
          h("div", { class: "field grow" }, h("label", { for: "batch-model" }, t("ask.model")), h("select", { id: "batch-model" }, options(this._modelNames()))),
          h("div", { class: "field" }, h("label", { for: "batch-tokens" }, t("burst.tokens")), h("input", { id: "batch-tokens", type: "number", min: 1, max: 1_000_000, value: most, placeholder: t("ask.mode.default") })),
        ),
        h("div", { class: "field" }, h("label", { for: "batch-prompts" }, t("batch.prompts")), h("textarea", { id: "batch-prompts", rows: 8 })),
      ),
      h(
        "div",
        { id: "batch-of-file", hidden: true },
        h("div", { class: "field" }, h("label", { for: "batch-file" }, t("batch.file")), h("select", { id: "batch-file", on: { change: () => this._drawSource() } }, options(this._fileNames()))),
        h("div", { class: "field", id: "batch-upload" }, h("label", { for: "batch-input" }, t("files.choose")), h("input", { type: "file", id: "batch-input", accept: ".jsonl,.ndjson,application/jsonl" })),
      ),
      h("p", { class: "hint", id: "batch-hint" }),
      h("div", { class: "actions" }, h("button", { type: "submit", class: "primary", id: "batch-send", disabled: this._busy }, t("batch.send"))),
      h("div", { class: "upload-progress", id: "batch-progress", hidden: true }),
      h("p", { class: "notice bad", id: "batch-problem", role: "alert", hidden: true }),
    );
    byId("batch-prompts").value = prompts;
    this._drawSource();
  }

  _modelNames = () => (this._models.length ? this._models : ["default"]).map(name => [name, name]);
  _fileNames = () => [[NEW, t("batch.file.new")], ...this._files.map(file => [file.id, `${file.filename} (${bytes(file.bytes)})`])];

  _drawNames(id, names) {
    const select = byId(id);
    const before = select.value;
    replace(select, options(names));
    if (names.some(([value]) => value === before)) select.value = before;
  }

  _drawSource() {
    byId("batch-of-prompts").hidden = this._source !== "prompts";
    byId("batch-of-file").hidden = this._source !== "file";
    byId("batch-upload").hidden = byId("batch-file").value !== NEW;
    this._drawHint();
  }

  _drawHint() {
    setText(byId("batch-hint"), this._source === "prompts" ? t("batch.lines", { n: this._lines().length }) : t("batch.file.hint"));
  }

  _lines() {
    const endpoint = byId("batch-endpoint").value;
    return linesOf(byId("batch-prompts").value, { endpoint, model: byId("batch-model").value, most: Number(byId("batch-tokens").value) || 0 });
  }

  async _send() {
    if (this._busy) return;
    this._setBusy(true);
    this._problem(null);
    try {
      const endpoint = byId("batch-endpoint").value;
      const input = await this._input();
      if (input === null) return;
      const batch = await this._make(input.fileId, endpoint);
      this._onMade({ endpoint, ...input, batch });
    } catch (problem) {
      if (problem.name !== "AbortError") this._problem(explain(problem));
    } finally {
      this._setBusy(false);
    }
  }

  /** The file that the batch is made of, uploaded where it has to be; null where there is nothing to send, and that is said. */
  async _input() {
    const known = byId("batch-file").value;
    if (this._source === "file" && known !== NEW) return { fileId: known, name: this._files.find(({ id }) => id === known).filename, lines: null };
    let file;
    let lines = null;
    if (this._source === "prompts") {
      lines = this._lines();
      if (!lines.length) {
        this._problem(t("batch.none"));
        return null;
      }
      file = new File([`${lines.join("\n")}\n`], "prompts.jsonl", { type: "application/jsonl" });
    } else {
      file = byId("batch-input").files[0];
      if (!file) {
        this._problem(t("batch.noFile"));
        return null;
      }
    }
    const { id, filename } = await uploadInto(byId("batch-progress"), file, "batch", this._who());
    byId("batch-input").value = "";
    this._onUpload();
    return { fileId: id, name: filename, lines: lines && lines.length <= SHOWN ? lines : null };
  }

  _setBusy(busy) {
    this._busy = busy;
    byId("batch-send").disabled = busy;
  }

  _problem(text) {
    const box = byId("batch-problem");
    box.hidden = text === null;
    setText(box, text);
  }
}

const options = names => names.map(([value, text]) => h("option", { value }, text));
