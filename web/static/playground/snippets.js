// The same calls for a terminal: what the page has just done, as curl and as Python. The key itself is never written out.

import { numberOf } from "../common/sse.js";

const shell = text => `'${text.replaceAll("'", "'\\''")}'`;

/** A JSON value as Python writes it. */
export function python(value, indent = "") {
  const more = indent + "    ";
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value === "string") return text(value);
  if (typeof value !== "object") return String(value);
  const entries = Array.isArray(value)
    ? value.map(item => python(item, more))
    : Object.entries(value).map(([name, item]) => `${text(name)}: ${python(item, more)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  const line = open + entries.join(", ") + close;
  if (line.length + indent.length < 72 && !line.includes("\n")) return line;
  return `${open}\n${entries.map(entry => more + entry + ",\n").join("")}${indent}${close}`;
}

/** A string in JSON is one in Python too, but for characters beyond the basic plane, which Python wants whole. */
const text = value => JSON.stringify(value.toWellFormed()).replaceAll("\u007f", "\\u007f");

/** httpx takes names in other scripts as bytes only. */
const headerText = value => text(value) + (/[^\x20-\x7e]/.test(value) ? ".encode()" : "");

function curlHeaders(headers, key, json) {
  const all = [
    ...(json ? ["'Content-Type: application/json'"] : []),
    ...(key ? ['"Authorization: Bearer $FAIRLANE_KEY"'] : []),
    ...Object.entries(headers).map(([name, value]) => shell(`${name}: ${value}`)),
  ];
  return all.map(header => ` -H ${header}`).join("");
}

function pythonHeaders(headers, key) {
  const entries = [
    ...(key ? [`"Authorization": "Bearer " + os.environ["FAIRLANE_KEY"]`] : []),
    ...Object.entries(headers).map(([name, value]) => `${text(name)}: ${headerText(value)}`),
  ];
  return `{${entries.join(", ")}}`;
}

/**
 * The steps of a story as one script each. `story`: { base, key (whether one is used), headers (who: names as typed), steps }.
 *
 * Steps, in the order they were done:
 * { do: "submit", path, body } · { do: "read" } · { do: "resume", after } · { do: "cancel" } · { do: "poll" } · { do: "link", url } ·
 * { do: "chat", body, headers } · { do: "burst", groups: [{ user, tier, count }], body }. `taskId` of the story names the task in curl.
 */
export function snippets(story, say) {
  return { curl: curl(story, say), python: pythonScript(story, say) };
}

function curl({ base, key, headers, taskId, steps }, say) {
  const who = curlHeaders(headers, key, false);
  const posting = curlHeaders(headers, key, true);
  const task = `${base}/api/task/${taskId}`;
  const lines = steps.map(step => {
    switch (step.do) {
      case "submit":
        return [say("submit"), `curl -s ${base}${step.path}${posting} \\\n  -d ${shell(JSON.stringify(step.body))}`];
      case "read":
        return [say("read"), `curl -N ${task}/events${who}`];
      case "link":
        return [say("link"), `curl -N ${shell(base + step.url)}`];
      case "resume":
        return [say("resume", numberOf(step.after)), `curl -N ${task}/events${who} -H 'Last-Event-ID: ${step.after}'`];
      case "cancel":
        return [say("cancel"), `curl -s -X POST ${task}/cancel${who}`];
      case "poll":
        return [say("poll"), `curl -s ${task}${who}`];
      case "chat": {
        const all = curlHeaders({ ...headers, ...step.headers }, key, true);
        return [say("chat"), `curl -N ${base}/v1/chat/completions${all} \\\n  -d ${shell(JSON.stringify(step.body))}`];
      }
      case "burst":
        return [
          say("burst"),
          step.groups
            .map(({ user, tier, count }) => {
              const as = curlHeaders(user ? { "X-Fairlane-User": user, "X-Fairlane-Tier": tier } : {}, key, true);
              const send = `curl -s ${base}/api/openai${as} \\\n    -d ${shell(JSON.stringify(step.body))}`;
              return `for i in $(seq ${count}); do\n  ${send}; echo\ndone`;
            })
            .join("\n"),
        ];
      default:
        throw new Error(step.do);
    }
  });
  return lines.map(([comment, line]) => `# ${comment}\n${line}\n`).join("\n");
}

const READ = (url, extra) => `with httpx.stream("GET", ${url}, ${extra}timeout=None) as events:
    for line in events.iter_lines():
        if line.startswith("data: "):
            print(json.loads(line[6:]).get("delta", ""), end="", flush=True)`;

function pythonScript(story, say) {
  return story.steps.some(step => step.do === "chat") ? pythonChat(story, say) : pythonNative(story, say);
}

function pythonChat({ base, key, headers, steps }, say) {
  const step = steps.find(({ do: done }) => done === "chat");
  const { stream: _, ...body } = step.body;
  const more = { ...headers, ...step.headers };
  const members = Object.entries(body).map(([name, value]) => `    ${name}=${python(value, "    ")},\n`);
  if (Object.keys(more).length) members.push(`    extra_headers=${python(more, "    ")},\n`);
  return `${key ? "import os\n\n" : ""}from openai import OpenAI

# ${say("chat")}
client = OpenAI(base_url="${base}/v1", api_key=${key ? 'os.environ["FAIRLANE_KEY"]' : '"none"'})
stream = client.chat.completions.create(
    stream=True,
${members.join("")})
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
`;
}

function pythonNative({ base, key, headers, taskId, steps }, say) {
  const burst = steps.some(step => step.do === "burst");
  const submits = burst || steps.some(step => step.do === "submit");
  const parts = [
    `import json\n${key ? "import os\n" : ""}\nimport httpx\n`,
    `gateway = "${base}"${burst ? "" : `\nheaders = ${pythonHeaders(headers, key)}`}`,
  ];
  if (!submits) parts[1] += `\ntask_id = ${text(taskId)}`;
  const events = `f"{gateway}/api/task/{task_id}/events"`;
  for (const step of steps) {
    switch (step.do) {
      case "submit":
        parts.push(
          `# ${say("submit")}\ntask = httpx.post(f"{gateway}${step.path}", headers=headers, json=${python(step.body)}).json()\n` +
            `task_id = task["taskId"]\nprint(task_id, task["position"])`,
        );
        break;
      case "read":
        parts.push(`# ${say("read")}\n${READ(events, "headers=headers, ")}`);
        break;
      case "link":
        parts.push(`# ${say("link")}\n${READ(`gateway + ${text(step.url)}`, "")}`);
        break;
      case "resume":
        parts.push(`# ${say("resume", numberOf(step.after))}\n${READ(events, `headers=headers | {"Last-Event-ID": "${step.after}"}, `)}`);
        break;
      case "cancel":
        parts.push(`# ${say("cancel")}\nprint(httpx.post(f"{gateway}/api/task/{task_id}/cancel", headers=headers).json())`);
        break;
      case "poll":
        parts.push(`# ${say("poll")}\nprint(httpx.get(f"{gateway}/api/task/{task_id}", headers=headers).json())`);
        break;
      case "burst":
        parts.push(
          `# ${say("burst")}\nbody = ${python(step.body)}\n` +
            step.groups
              .map(({ user, tier, count }) => {
                const as = pythonHeaders(user ? { "X-Fairlane-User": user, "X-Fairlane-Tier": tier } : {}, key);
                return `for _ in range(${count}):\n    print(httpx.post(f"{gateway}/api/openai", headers=${as}, json=body).json())`;
              })
              .join("\n"),
        );
        break;
      default:
        throw new Error(step.do);
    }
  }
  const script = parts.join("\n\n") + "\n";
  return script.includes("json.loads") ? script : script.replace("import json\n", "").replace(/^\n/, "");
}
