// OpenAI's chat completions, and the older completions.

import { chatMessages, chatWishes } from "./conversation.js";

/**
 * Reads either stream, told in the events that a task's log would have: `feed` returns those that a frame { data } comes to.
 *
 * The surface does not tell when a task began to run, so its times count from `sentAt`. `number` is always null: frames are not
 * counted here, and a stream that broke cannot be read on.
 */
export class OpenAIReader {
  constructor(sentAt) {
    this.ended = false;
    this.number = null;
    this._sentAt = sentAt;
    this._started = false;
    this._finishReason = null;
    this._usage = null;
    this._content = "";
  }

  feed({ data }, ts) {
    if (data === "[DONE]") {
      this.ended = true;
      const done = { ts, finishReason: this._finishReason, usage: this._usage, result: this._content };
      return [...this._begin(null), { event: "done", data: done }];
    }
    const chunk = JSON.parse(data);
    if (chunk.error) {
      this.ended = true;
      const { message, code } = chunk.error;
      if (code === "cancelled") return [{ event: "cancelled", data: { ts, by: "client" } }];
      return [{ event: "error", data: { ts, error: message, code, retryable: false } }];
    }
    if (chunk.fairlane) return [{ event: "queued", data: { ts, position: chunk.fairlane.queuePosition, ...chunk.fairlane } }];
    this._usage = chunk.usage ?? this._usage;
    const choice = chunk.choices?.[0];
    if (!choice) return [];
    const add = (kind, delta) => ({ event: "chunk", data: { ts, index: 0, kind, delta } });
    const events = this._begin(chunk.model);
    const delta = choice.delta ?? {};
    const reasoning = delta.reasoning_content ?? delta.reasoning;
    const text = choice.text ?? delta.content;
    if (reasoning) events.push(add("reasoning", reasoning));
    if (text) events.push(add("text", text));
    if (delta.refusal) events.push(add("refusal", delta.refusal));
    if (delta.tool_calls) events.push(add("tool", delta.tool_calls));
    this._content += (text ?? "") + (delta.refusal ?? "");
    this._finishReason = choice.finish_reason ?? this._finishReason;
    return events;
  }

  _begin(model) {
    if (this._started) return [];
    this._started = true;
    return [{ event: "start", data: { ts: this._sentAt, attempt: 1, model, queue: null } }];
  }
}

const STREAM = { stream: true, stream_options: { include_usage: true } };

export const chat = {
  name: "chat",
  path: "/v1/chat/completions",
  lacks: [],
  body: conversation => ({ model: conversation.model, messages: chatMessages(conversation), ...chatWishes(conversation), ...STREAM }),
  Reader: OpenAIReader,
  sdk: {
    name: "openai",
    call: "chat.completions.create",
    python: 'if event.choices:\n    print(event.choices[0].delta.content or "", end="", flush=True)',
    node: 'process.stdout.write(event.choices[0]?.delta.content ?? "");',
  },
};

/** A conversation as one text: this surface knows no turns. A single question stands as it is. */
export function transcript({ system, turns }) {
  if (turns.length === 1 && !system) return turns[0].text;
  const said = turns.filter(({ role }) => role !== "tool").map(({ role, text }) => `${role === "user" ? "User" : "Assistant"}: ${text}`);
  return [...(system ? [system] : []), ...said, "Assistant:"].join("\n\n");
}

export const completions = {
  name: "completions",
  path: "/v1/completions",
  lacks: ["turns", "tools", "effort"],
  body: conversation => ({
    model: conversation.model,
    prompt: transcript(conversation),
    ...(conversation.maxTokens ? { max_tokens: conversation.maxTokens } : {}),
    ...STREAM,
  }),
  Reader: OpenAIReader,
  sdk: {
    name: "openai",
    call: "completions.create",
    python: 'if event.choices:\n    print(event.choices[0].text, end="", flush=True)',
    node: 'process.stdout.write(event.choices[0]?.text ?? "");',
  },
};
