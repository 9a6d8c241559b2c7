// A batch's lines: those of its input, made of prompts, and what those of its output say. Pure.

/** How a prompt is asked for at each endpoint: the body of its line. */
const BODIES = {
  "/v1/chat/completions": (model, prompt, most) => ({ model, messages: [{ role: "user", content: prompt }], ...(most ? { max_tokens: most } : {}) }),
  "/v1/responses": (model, prompt, most) => ({ model, input: prompt, ...(most ? { max_output_tokens: most } : {}) }),
  "/v1/completions": (model, prompt, most) => ({ model, prompt, ...(most ? { max_tokens: most } : {}) }),
  "/v1/embeddings": (model, prompt) => ({ model, input: prompt }),
};

export const ENDPOINTS = Object.keys(BODIES);

/** Prompts, one a line, as lines of a batch; empty ones are none. `most`: tokens of an answer, 0 for the model's own bound. */
export function linesOf(prompts, { endpoint, model, most }) {
  const body = BODIES[endpoint];
  return prompts
    .split("\n")
    .map(prompt => prompt.trim())
    .filter(Boolean)
    .map((prompt, index) => JSON.stringify({ custom_id: `prompt-${index + 1}`, method: "POST", url: endpoint, body: body(model, prompt, most) }));
}

/** What a line of an output or error file says: { id, ok, text }. */
export function answerOf(line) {
  let told;
  try {
    told = JSON.parse(line);
  } catch {
    return { id: "", ok: false, text: line };
  }
  const { custom_id: id = "", response, error } = told;
  const body = response?.body;
  if (error) return { id, ok: false, text: error.message ?? error.code ?? "" };
  if (!response || response.status_code >= 400) return { id, ok: false, text: body?.error?.message ?? `HTTP ${response?.status_code}` };
  return { id, ok: true, text: textOf(body) };
}

function textOf(body) {
  const choice = body?.choices?.[0];
  if (choice) return choice.text ?? choice.message?.content ?? JSON.stringify(choice.message?.tool_calls ?? choice.message ?? "");
  if (Array.isArray(body?.output)) {
    const parts = body.output.flatMap(item => item.content ?? []).filter(({ type }) => type === "output_text");
    return parts.map(({ text }) => text).join("") || JSON.stringify(body.output);
  }
  const vector = body?.data?.[0]?.embedding;
  if (Array.isArray(vector)) return `[${vector.slice(0, 4).join(", ")}${vector.length > 4 ? ", …" : ""}] (${vector.length})`;
  return JSON.stringify(body ?? null);
}

export const UNDER_WAY = new Set(["validating", "in_progress", "finalizing", "cancelling"]);

/** How far a batch is: { total, done, failed, share }; the share of those that are over, 0 to 1. */
export function progressOf({ request_counts: counts }) {
  const { total = 0, completed = 0, failed = 0 } = counts ?? {};
  return { total, done: completed + failed, failed, share: total ? (completed + failed) / total : 0 };
}
