// The page of all calls: draws the gateway's own OpenAPI document. It loads nothing from elsewhere.

import { request } from "../client/fairlane.js";
import { explain } from "../common/api.js";
import { byId, h, replace } from "../common/dom.js";
import { onLanguage, t } from "../common/i18n.js";
import { startPage } from "../common/page.js";
import { plainTable } from "../common/table.js";
import strings from "./strings.js";

const METHODS = ["get", "post", "patch", "put", "delete"];
const MAX_DEPTH = 4;

startPage({ name: "docs", strings });
try {
  const document_ = await request("/openapi.json");
  const draw = () => {
    replace(byId("about"), prose(document_.info.description));
    replace(byId("calls"), ...groups(document_), errorCodes(document_["x-error-codes"]));
    show();
  };
  draw();
  addEventListener("hashchange", show);
  onLanguage(draw);
} catch (error) {
  replace(byId("problem"), h("p", { class: "notice bad" }, explain(error)));
}

/** Marks the row that the address names: it was not there when the browser looked for it. */
function show() {
  document.querySelector(".wanted")?.classList.remove("wanted");
  const row = document.getElementById(location.hash.slice(1));
  row?.classList.add("wanted");
  row?.scrollIntoView({ block: "center" });
}

/** The calls by tag, in the document's order. */
function groups(document_) {
  const found = new Map();
  for (const [path, operations] of Object.entries(document_.paths)) {
    for (const method of METHODS.filter(name => name in operations)) {
      const operation = operations[method];
      const tag = operation.tags?.[0] ?? "";
      if (!found.has(tag)) found.set(tag, []);
      found.get(tag).push(call(document_, method, path, operation));
    }
  }
  return [...found].map(([tag, calls]) => h("section", { class: "group stack" }, h("h2", {}, tag), calls));
}

function call(document_, method, path, operation) {
  const body = operation.requestBody?.content?.["application/json"]?.schema;
  const says = (operation.description ?? "").split("\n\n");
  return h(
    "details",
    { class: "call panel" },
    h("summary", {}, h("span", { class: "tag method" }, method.toUpperCase()), h("code", {}, path), h("span", { class: "says" }, prose(says[0]))),
    says.slice(1).map(text => h("p", {}, prose(text))),
    operation.parameters ? [h("h3", {}, t("docs.parameters")), parameters(document_, operation.parameters)] : null,
    body ? [h("h3", {}, t("docs.body")), h("pre", { tabindex: 0 }, shape(document_, body))] : null,
    h("h3", {}, t("docs.answers")),
    answers(document_, operation.responses),
  );
}

/** All error codes; an error's link names the row of its code. */
function errorCodes(codes) {
  const status = ({ native, openai }) => `${native.join(", ")} · ${openai.join(", ")}`;
  const rows = codes.map(row =>
    h(
      "tr",
      { id: row.code },
      h("td", {}, h("code", {}, row.code), row.openaiCode === row.code ? null : [" ", h("code", {}, row.openaiCode)]),
      h("td", { class: "statuses" }, status(row.statuses)),
      h("td", {}, t(row.retryable ? "docs.yes" : "docs.no")),
      h("td", {}, prose(row.cause)),
      h("td", {}, prose(row.action)),
    ),
  );
  return h(
    "section",
    { class: "group stack codes" },
    h("h2", { id: "errors" }, t("docs.errors")),
    table(["docs.code", "docs.statuses", "docs.retry", "docs.cause", "docs.action"], rows),
  );
}

/** Text in which what stands between backticks is code. */
function prose(text) {
  return text.split("`").map((part, index) => (index % 2 ? h("code", {}, part) : part));
}

function parameters(document_, list) {
  const rows = list.map(({ name, in: where, required, schema, description }) =>
    h(
      "tr",
      {},
      h("td", {}, h("code", {}, name), required ? ` (${t("docs.required")})` : null),
      h("td", {}, where),
      h("td", {}, h("code", {}, shape(document_, schema))),
      h("td", {}, prose(description ?? "")),
    ),
  );
  return table(["docs.name", "docs.where", "docs.type", "docs.meaning"], rows);
}

/** Errors with the same content are one row. */
function answers(document_, responses) {
  const alike = new Map();
  for (const [status, response] of Object.entries(responses)) {
    const key = status < "400" ? status : JSON.stringify(response.content);
    if (!alike.has(key)) alike.set(key, { statuses: [], ...response });
    alike.get(key).statuses.push(status);
  }
  const rows = [...alike.values()].map(({ statuses, description, content }) =>
    h(
      "tr",
      {},
      h("td", { class: "statuses" }, h("code", {}, statuses.join(", "))),
      h("td", {}, statuses.length > 1 ? t("docs.error") : prose(description ?? "")),
      h(
        "td",
        {},
        Object.entries(content ?? {}).map(([kind, { schema, itemSchema }]) => [
          h("div", {}, h("code", {}, kind)),
          h("pre", { tabindex: 0 }, shape(document_, itemSchema ?? schema ?? {})),
        ]),
      ),
    ),
  );
  return table(["docs.status", "docs.meaning", "docs.type"], rows);
}

function table(heads, rows) {
  return h("div", { class: "table-wrap" }, plainTable(heads, rows));
}

/** A schema as a short text: types, and members of objects one a line. */
function shape(document_, schema, depth = 0) {
  if (schema.$ref) {
    const name = schema.$ref.split("/").at(-1);
    return depth < MAX_DEPTH ? shape(document_, document_.components.schemas[name], depth) : name;
  }
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map(value => JSON.stringify(value)).join(" | ");
  const some = schema.anyOf ?? schema.oneOf;
  if (some) return some.map(one => shape(document_, one, depth)).join(" | ");
  if (schema.contentSchema) return shape(document_, schema.contentSchema, depth);
  if (schema.type === "array") return `[${shape(document_, schema.items ?? {}, depth + 1)}]`;
  if (schema.properties && depth < MAX_DEPTH) {
    const pad = "  ".repeat(depth + 1);
    const required = new Set(schema.required ?? []);
    const lines = Object.entries(schema.properties).map(
      ([name, inner]) => `${pad}${name}${required.has(name) ? "" : "?"}: ${shape(document_, inner, depth + 1)}`,
    );
    return `{\n${lines.join("\n")}\n${"  ".repeat(depth)}}`;
  }
  return schema.type ?? "any JSON";
}
