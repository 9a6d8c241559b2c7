// A question through OpenAI's or Anthropic's own SDK, in Python and JavaScript.

import { nodeHeaders, python, pythonHeaders, text } from "./quoting.js";

const indented = (lines, indent) => lines.replaceAll("\n", `\n${indent}`);

/** What a story of { do: "ask" } or { do: "retrieve" } has done, with the SDK of its surface. */
function told({ steps, headers }) {
  const first = steps[0];
  const { stream: _, ...body } = first.body ?? {};
  return { first, body, more: { ...headers, ...first.headers }, onward: steps.slice(1) };
}

const CLIENTS = { openai: ["OpenAI", "/v1"], anthropic: ["Anthropic", ""] };

/** A client in Python. The SDKs take no names in other scripts as headers, their HTTP client does: then `headers` are its own. */
export function pythonClient(sdk, { base, key, headers }) {
  const [name, path] = CLIENTS[sdk];
  const own = /[^\x20-\x7e]/.test(Object.values(headers).join(""));
  const options = [`base_url="${base}${path}"`, `api_key=${key ? 'os.environ["FAIRLANE_KEY"]' : '"none"'}`];
  if (own) options.push(`http_client=DefaultHttpxClient(headers=${pythonHeaders(headers, false)})`);
  const imported = own ? `DefaultHttpxClient, ${name}` : name;
  return { own, text: `from ${sdk} import ${imported}\n\nclient = ${name}(${options.join(", ")})` };
}

export function sdkPython({ base, key, ...story }, say) {
  const { first, body, more, onward } = told(story);
  const { name, call, python: each } = first.surface.sdk;
  const { own, text: made } = pythonClient(name, { base, key, headers: more });
  const extra = Object.keys(more).length && !own ? `    extra_headers=${pythonHeaders(more, false)},\n` : "";
  const members = Object.entries(body).map(([member, value]) => `    ${member}=${python(value, "    ")},\n`);
  const loop = `for event in stream:\n    ${indented(each, "    ")}`;
  const named = extra ? `, ${extra.trim().slice(0, -1)}` : "";
  const parts = [];
  if (first.surface.whole) parts.push(`# ${say(first.surface.name)}\nanswer = client.${call}(\n${members.join("")}${extra})\n${each}`);
  else if (first.do === "ask") parts.push(`# ${say(first.surface.name)}\nstream = client.${call}(\n    stream=True,\n${members.join("")}${extra})\n${loop}`);
  else parts.push(`# ${say("retrieve")}\nstream = client.responses.retrieve(${text(first.id)}, stream=True${named})\n${loop}`);
  for (const step of onward) {
    if (step.do === "resume") parts.push(`# ${say("resume", step.after)}\nstream = client.responses.retrieve(${text(step.id)}, stream=True, starting_after=${step.after}${named})\n${loop}`);
    else if (step.id) parts.push(`# ${say("cancel")}\nprint(client.responses.cancel(${text(step.id)}${named}).status)`);
  }
  return `${key ? "import os\n\n" : ""}${made}\n\n${parts.join("\n\n")}\n`;
}

export function sdkNode({ base, key, ...story }, say) {
  const { first, body, more, onward } = told(story);
  const { name, call, node: each } = first.surface.sdk;
  const [client, path] = CLIENTS[name];
  const module = name === "openai" ? "openai" : "@anthropic-ai/sdk";
  const credential = key ? "process.env.FAIRLANE_KEY" : '"none"';
  const made = `import ${client} from "${module}";\n\nconst client = new ${client}({ baseURL: "${base}${path}", apiKey: ${credential} });`;
  const options = Object.keys(more).length ? `, { headers: ${nodeHeaders(more)} }` : "";
  const loop = `for await (const event of stream) {\n  ${indented(each, "  ")}\n}`;
  const parts = [];
  if (first.surface.whole) parts.push(`// ${say(first.surface.name)}\nconst answer = await client.${call}(${JSON.stringify(body, null, 2)}${options});\n${each}`);
  else if (first.do === "ask") parts.push(`// ${say(first.surface.name)}\nlet stream = await client.${call}(${JSON.stringify({ ...body, stream: true }, null, 2)}${options});\n${loop}`);
  else parts.push(`// ${say("retrieve")}\nlet stream = await client.responses.retrieve(${text(first.id)}, { stream: true }${options});\n${loop}`);
  for (const step of onward) {
    if (step.do === "resume") parts.push(`// ${say("resume", step.after)}\nstream = await client.responses.retrieve(${text(step.id)}, { stream: true, starting_after: ${step.after} }${options});\n${loop}`);
    else if (step.id) parts.push(`// ${say("cancel")}\nconsole.log((await client.responses.cancel(${text(step.id)}${options})).status);`);
  }
  return `${made}\n\n${parts.join("\n\n")}\n`;
}
