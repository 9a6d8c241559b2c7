// What an embedding's answer comes to: how many vectors, of how many dimensions, and how alike they are to the first.

import { Problem, send } from "../common/api.js";
import { h, replace } from "../common/dom.js";
import { duration, number } from "../common/format.js";
import { t } from "../common/i18n.js";
import { gauge } from "../common/table.js";
import { similarity, vectorsOf } from "./surfaces/embeddings.js";

const MOST_ROWS = 100;
const SHOWN = 4; // numbers of a vector

/** Shows one answer at most, or that it is awaited: who asks again, or leaves, asks no more for the one before. */
export class VectorsPanel {
  constructor(element, { said }) {
    this._element = element;
    this._said = said;
    this._leaving = null;
    this._asked = null; // { inputs, tookMs, answer, vectors }; without vectors: it is awaited
  }

  /** Ask for the vectors of these inputs. Throws Problem, and AbortError when the reader stops it. */
  async ask(path, body, { headers }) {
    this.close();
    const leaving = new AbortController();
    this._leaving = leaving;
    this._asked = { inputs: body.input, vectors: null };
    this.draw();
    const sentAt = Date.now();
    try {
      const answer = await (await send(path, { body, headers, signal: leaving.signal, timeoutMs: 0 })).json();
      const vectors = vectorsOf(answer);
      if (vectors === null) throw new Problem(0, "JSON_PARSE_FAILED", t("vectors.none"));
      this._asked = { inputs: body.input, tookMs: Date.now() - sentAt, answer, vectors };
      this._said(t("vectors.said", { n: vectors.length, dimensions: number(vectors[0].length) }));
    } catch (problem) {
      if (this._leaving === leaving) this._asked = null;
      throw problem;
    } finally {
      if (this._leaving === leaving) this.draw();
    }
  }

  close() {
    this._leaving?.abort();
    this._leaving = null;
    this._asked = null;
  }

  draw() {
    const asked = this._asked;
    const title = h("h2", { id: "vectors-title" }, t("vectors.title"));
    if (asked === null) {
      replace(this._element, title, h("div", { class: "empty" }, h("p", { class: "empty-title" }, t("task.empty"))));
      return;
    }
    if (asked.vectors === null) {
      const stop = h("button", { type: "button", id: "vectors-stop", on: { click: () => this._leaving.abort() } }, t("task.cancel"));
      replace(this._element, h("div", { class: "panel-head" }, title, h("div", { class: "end" }, stop)), h("p", { class: "muted" }, t("vectors.waiting", { n: asked.inputs.length })));
      return;
    }
    const { answer, vectors, tookMs } = asked;
    const fact = (name, text) => h("div", {}, h("dt", {}, t(name)), h("dd", { dataset: { fact: name.split(".")[1] } }, text));
    replace(
      this._element,
      h("div", { class: "panel-head" }, title),
      h("dl", { class: "stats" }, fact("vectors.count", number(vectors.length)), fact("vectors.dimensions", number(vectors[0].length)), fact("vectors.tokens", number(answer.usage?.prompt_tokens)), fact("vectors.took", duration(tookMs)), fact("vectors.model", answer.model ?? "–")),
      this._table(asked),
    );
  }

  _table({ inputs, vectors }) {
    const rows = inputs.slice(0, MOST_ROWS).map((input, index) => {
      const vector = vectors[index] ?? [];
      const alike = similarity(vectors[0], vector);
      const begin = vector.slice(0, SHOWN).map(value => number(value, 4));
      return h(
        "tr",
        {},
        h("th", { scope: "row" }, input),
        h("td", { class: "alike" }, alike === null ? "–" : gauge(number(alike, 3), alike)),
        h("td", { class: "num" }, h("code", {}, `[${begin.join(", ")}${vector.length > SHOWN ? ", …" : ""}]`)),
      );
    });
    const head = ["vectors.input", "vectors.alike", "vectors.vector"].map((name, index) => h("th", { scope: "col", class: index === 2 ? "num" : null }, t(name)));
    const table = h("div", { class: "table-wrap", tabindex: 0, role: "region", "aria-label": t("vectors.title") }, h("table", { id: "vectors-table" }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows)));
    return [table, inputs.length > MOST_ROWS ? h("p", { class: "hint" }, t("vectors.more", { n: number(MOST_ROWS), all: number(inputs.length) })) : null, h("p", { class: "hint" }, t("vectors.alike.hint"))];
  }
}
