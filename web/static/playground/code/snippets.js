// The same calls for a terminal: what the page has just done, as curl, as Python, and as JavaScript where there is an SDK for it.

import { numberOf } from "../../common/sse.js";
import { batchCurl, batchPython } from "./batch.js";
import { curlHeaders, python, pythonHeaders, shell, text } from "./quoting.js";
import { sdkNode, sdkPython } from "./sdk.js";
import { webhookCurl, webhookPython } from "./webhook.js";

/**
 * The steps of a story as one script each. `story`: { base, key (whether one is used), headers (who: names as typed), steps }.
 *
 * Steps, in the order they were done:
 * { do: "submit", path, body } · { do: "read" } · { do: "resume", after } · { do: "cancel" } · { do: "poll" } · { do: "link", url } ·
 * { do: "ask", surface, body, headers } · { do: "retrieve", id } (a kept response; `resume` and `cancel` have its id, too) ·
 * { do: "burst", groups: [{ user, tier, count }], body } · { do: "batch", … } (batch.js) · { do: "webhook", … } (webhook.js). `taskId` of the story names the task in curl.
 */
export function snippets(story, say) {
  const did = name => story.steps.some(step => step.do === name);
  if (did("batch")) return { curl: batchCurl(story, say), python: batchPython(story, say) };
  if (did("webhook")) return { curl: webhookCurl(story, say), python: webhookPython(story, say) };
  if (did("ask") || did("retrieve")) return { curl: curl(story, say), python: sdkPython(story, say), node: sdkNode(story, say) };
  return { curl: curl(story, say), python: pythonNative(story, say) };
}

function curl({ base, key, headers, taskId, steps }, say) {
  const who = curlHeaders(headers, key, false);
  const posting = curlHeaders(headers, key, true);
  const task = `${base}/api/task/${taskId}`;
  const stream = (id, more) => shell(`${base}/v1/responses/${id}?stream=true${more}`);
  const lines = steps.map(step => {
    switch (step.do) {
      case "submit":
        return [say("submit"), `curl -s ${base}${step.path}${posting} \\\n  -d ${shell(JSON.stringify(step.body))}`];
      case "read":
        return [say("read"), `curl -N ${task}/events${who}`];
      case "link":
        return [say("link"), `curl -N ${shell(base + step.url)}`];
      case "retrieve":
        return [say("retrieve"), `curl -N ${stream(step.id, "")}${who}`];
      case "resume":
        if (step.id) return [say("resume", step.after), `curl -N ${stream(step.id, `&starting_after=${step.after}`)}${who}`];
        return [say("resume", numberOf(step.after)), `curl -N ${task}/events${who} -H 'Last-Event-ID: ${step.after}'`];
      case "cancel":
        return [say("cancel"), `curl -s -X POST ${step.id ? `${base}/v1/responses/${step.id}` : task}/cancel${who}`];
      case "poll":
        return [say("poll"), `curl -s ${task}${who}`];
      case "ask": {
        const all = curlHeaders({ ...headers, ...step.headers, ...step.surface.headers }, key, true);
        return [say(step.surface.name), `curl ${step.surface.whole ? "-s" : "-N"} ${base}${step.surface.path}${all} \\\n  -d ${shell(JSON.stringify(step.body))}`];
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
