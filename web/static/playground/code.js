// The panel that shows the page's requests as curl and as Python.

import { h, radios, replace } from "../common/dom.js";
import { t } from "../common/i18n.js";
import { copyButton } from "../common/page.js";
import { numberOf } from "../common/sse.js";

const shell = text => `'${text.replaceAll("'", "'\\''")}'`;

/** A JSON string is one in Python too, except for characters beyond the basic plane, which Python needs whole. */
const quoted = value => JSON.stringify(value.toWellFormed()).replaceAll("\u007f", "\\u007f");

/** A JSON value as Python writes it. */
function python(value, indent = "") {
  const more = indent + "    ";
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "string") return quoted(value);
  if (typeof value !== "object") return String(value);
  const entries = Array.isArray(value)
    ? value.map(item => python(item, more))
    : Object.entries(value).map(([name, item]) => `${quoted(name)}: ${python(item, more)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  const line = open + entries.join(", ") + close;
  if (line.length + indent.length < 72 && !line.includes("\n")) return line;
  return `${open}\n${entries.map(entry => more + entry + ",\n").join("")}${indent}${close}`;
}

function curlHeaders(headers, key, json) {
  const all = [
    ...(json ? ["'Content-Type: application/json'"] : []),
    ...(key ? ['"Authorization: Bearer $FAIRLANE_KEY"'] : []),
    ...Object.entries(headers).map(([name, value]) => shell(`${name}: ${value}`)),
  ];
  return all.map(header => ` -H ${header}`).join("");
}

/** httpx2 takes names in other scripts as bytes only. */
function pythonHeaders(headers, key) {
  const entries = [
    ...(key ? [`"Authorization": "Bearer " + os.environ["FAIRLANE_KEY"]`] : []),
    ...Object.entries(headers).map(([name, value]) => `${quoted(name)}: ${quoted(value)}${/[^\x20-\x7e]/.test(value) ? ".encode()" : ""}`),
  ];
  return `{${entries.join(", ")}}`;
}

const groupHeaders = ({ user, tier }) => (user ? { "X-Fairlane-User": user, "X-Fairlane-Tier": tier } : {});

/*
 * The steps of a story as one script per language. `story`: { base, key (whether one is used), headers (as typed), taskId, steps }. Steps:
 * { do: "submit", path, body } · { do: "read" } · { do: "resume", after } · { do: "cancel" } · { do: "poll" } · { do: "link", url } ·
 * { do: "ask", path, body, headers } · { do: "burst", groups: [{ user, tier, count }], body }.
 */
function curl({ base, key, headers, taskId, steps }, say) {
  const own = curlHeaders(headers, key, false);
  const task = `${base}/api/task/${taskId}`;
  const post = (path, more, body) => `curl -sN ${base}${path}${curlHeaders(more, key, true)} \\\n  -d ${shell(JSON.stringify(body))}`;
  const lines = {
    submit: ({ path, body }) => post(path, headers, body),
    ask: ({ path, body, headers: more }) => post(path, { ...headers, ...more }, body),
    read: () => `curl -N ${task}/events${own}`,
    link: ({ url }) => `curl -N ${shell(base + url)}`,
    resume: ({ after }) => `curl -N ${task}/events${own} -H 'Last-Event-ID: ${after}'`,
    cancel: () => `curl -s -X POST ${task}/cancel${own}`,
    poll: () => `curl -s ${task}${own}`,
    burst: ({ groups, body }) =>
      groups.map(group => `for i in $(seq ${group.count}); do\n  ${post("/api/openai", groupHeaders(group), body)}; echo\ndone`).join("\n"),
  };
  return steps.map(step => `# ${say(step)}\n${lines[step.do](step)}\n`).join("\n");
}

function pythonScript({ base, key, headers, taskId, steps }, say) {
  const stream = (method, url, more) =>
    `with httpx2.stream("${method}", ${url}, ${more}timeout=None) as events:\n    for line in events.iter_lines():\n        print(line)`;
  const events = `f"{gateway}/api/task/{task_id}/events"`;
  const lines = {
    submit: ({ path, body }) =>
      `task = httpx2.post(f"{gateway}${path}", headers=headers, json=${python(body)}).json()\ntask_id = task["taskId"]\nprint(task_id, task["position"])`,
    ask: ({ path, body, headers: more }) => stream("POST", `f"{gateway}${path}"`, `headers=headers | ${pythonHeaders(more, false)}, json=${python(body)}, `),
    read: () => stream("GET", events, "headers=headers, "),
    link: ({ url }) => stream("GET", `gateway + ${quoted(url)}`, ""),
    resume: ({ after }) => stream("GET", events, `headers=headers | {"Last-Event-ID": "${after}"}, `),
    cancel: () => `print(httpx2.post(f"{gateway}/api/task/{task_id}/cancel", headers=headers).json())`,
    poll: () => `print(httpx2.get(f"{gateway}/api/task/{task_id}", headers=headers).json())`,
    burst: ({ groups, body }) =>
      `body = ${python(body)}\n` +
      groups.map(group => `for _ in range(${group.count}):\n    print(httpx2.post(f"{gateway}/api/openai", headers=${pythonHeaders(groupHeaders(group), key)}, json=body).json())`).join("\n"),
  };
  const begin = `${key ? "import os\n\n" : ""}import httpx2\n\ngateway = "${base}"`;
  const named = steps.some(step => ["submit", "ask", "burst"].includes(step.do)) ? "" : `\ntask_id = ${quoted(taskId)}`;
  const own = steps.some(step => step.do === "burst") ? "" : `\nheaders = ${pythonHeaders(headers, key)}`;
  return `${[begin + own + named, ...steps.map(step => `# ${say(step)}\n${lines[step.do](step)}`)].join("\n\n")}\n`;
}

const LANGUAGES = { curl, Python: pythonScript };

/** Draws a story into `element`, with `titleId` as the id of its heading; hidden as long as there is none. */
export class CodePanel {
  constructor(element, titleId) {
    this._element = element;
    this._titleId = titleId;
    this._language = "curl";
    this._story = null;
  }

  show(story) {
    this._story = story;
    this.draw();
  }

  draw() {
    this._element.hidden = this._story === null;
    if (this._story === null) return;
    const script = LANGUAGES[this._language](this._story, step => t(`code.${step.do}`, { after: step.after ? numberOf(step.after) : "", path: step.path }));
    const texts = Object.keys(LANGUAGES).map(name => [name, h("span", {}, name)]);
    const choices = radios(this._titleId, texts, this._language, name => {
      this._language = name;
      this.draw();
      this._element.querySelector(`input[value="${name}"]`).focus();
    });
    replace(
      this._element,
      h(
        "div",
        { class: "panel-head" },
        h("h2", { id: this._titleId }, t("code.title")),
        h("div", { class: "end" }, copyButton(() => script), h("div", { class: "segmented compact", role: "group", "aria-labelledby": this._titleId }, choices)),
      ),
      this._story.key ? h("p", { class: "hint" }, t("code.key")) : null,
      h("pre", { class: "code", tabindex: 0, "aria-label": this._language }, h("code", {}, script)),
    );
  }
}
