// A question through OpenAI's or Anthropic's own SDK, in Python and JavaScript.

import { python, text } from "./quoting.js";

const indented = (lines, indent) => lines.replaceAll("\n", `\n${indent}`);

/** What a story of { do: "ask" } or { do: "retrieve" } has done, with the SDK of its surface. */
function told({ steps, headers }) {
  const first = steps[0];
  const { stream: _, ...body } = first.body ?? {};
  return { first, body, more: { ...headers, ...first.headers }, onward: steps.slice(1) };
}

export function sdkPython({ base, key, ...story }, say) {
  const { first, body, more, onward } = told(story);
  const { name, call, python: each } = first.surface.sdk;
  const credential = key ? 'os.environ["FAIRLANE_KEY"]' : '"none"';
  const made = name === "openai" ? `from openai import OpenAI\n\nclient = OpenAI(base_url="${base}/v1", api_key=${credential})` : `from anthropic import Anthropic\n\nclient = Anthropic(base_url="${base}", api_key=${credential})`;
  const extra = Object.keys(more).length ? `    extra_headers=${python(more, "    ")},\n` : "";
  const members = Object.entries(body).map(([member, value]) => `    ${member}=${python(value, "    ")},\n`);
  const loop = `for event in stream:\n    ${indented(each, "    ")}`;
  const named = extra ? `, ${extra.trim().slice(0, -1)}` : "";
  const parts = [];
  if (first.do === "ask") parts.push(`# ${say(first.surface.name)}\nstream = client.${call}(\n    stream=True,\n${members.join("")}${extra})\n${loop}`);
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
  const credential = key ? "process.env.FAIRLANE_KEY" : '"none"';
  const made =
    name === "openai"
      ? `import OpenAI from "openai";\n\nconst client = new OpenAI({ baseURL: "${base}/v1", apiKey: ${credential} });`
      : `import Anthropic from "@anthropic-ai/sdk";\n\nconst client = new Anthropic({ baseURL: "${base}", apiKey: ${credential} });`;
  const options = Object.keys(more).length ? `, ${JSON.stringify({ headers: more })}` : "";
  const loop = `for await (const event of stream) {\n  ${indented(each, "  ")}\n}`;
  const parts = [];
  if (first.do === "ask") parts.push(`// ${say(first.surface.name)}\nlet stream = await client.${call}(${JSON.stringify({ ...body, stream: true }, null, 2)}${options});\n${loop}`);
  else parts.push(`// ${say("retrieve")}\nlet stream = await client.responses.retrieve(${text(first.id)}, { stream: true }${options});\n${loop}`);
  for (const step of onward) {
    if (step.do === "resume") parts.push(`// ${say("resume", step.after)}\nstream = await client.responses.retrieve(${text(step.id)}, { stream: true, starting_after: ${step.after} }${options});\n${loop}`);
    else if (step.id) parts.push(`// ${say("cancel")}\nconsole.log((await client.responses.cancel(${text(step.id)}${options})).status);`);
  }
  return `${made}\n\n${parts.join("\n\n")}\n`;
}
