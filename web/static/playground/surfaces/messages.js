// Anthropic's Messages.

const MOST_TOKENS = 4096; // Messages wants to be told

/** Turns as Messages has them: calls and their results are blocks, and results stand in the user's turn. */
function turnsOf({ turns }) {
  const messages = [];
  for (const turn of turns) {
    if (turn.role === "tool") {
      const block = { type: "tool_result", tool_use_id: turn.id, content: turn.text };
      const last = messages.at(-1);
      if (last?.role === "user" && Array.isArray(last.content)) last.content.push(block);
      else messages.push({ role: "user", content: [block] });
    } else if (turn.role === "assistant" && turn.calls.length) {
      const calls = turn.calls.map(({ id, name, arguments: text }) => ({ type: "tool_use", id, name, input: inputOf(text) }));
      messages.push({ role: "assistant", content: [...(turn.text ? [{ type: "text", text: turn.text }] : []), ...calls] });
    } else messages.push({ role: turn.role, content: turn.text });
  }
  return messages;
}

/** Arguments are an object here; the gateway tells those that are none in the same way. */
function inputOf(text) {
  try {
    const input = JSON.parse(text || "{}");
    if (input !== null && typeof input === "object" && !Array.isArray(input)) return input;
  } catch {
    // said as it is
  }
  return { arguments: text };
}

/** Reads the stream (see OpenAIReader). Its thoughts, texts and calls are blocks, one open at a time. */
export class MessagesReader {
  constructor(sentAt) {
    this.ended = false;
    this.number = null;
    this._sentAt = sentAt;
    this._usage = null;
    this._finishReason = null;
    this._content = "";
    this._calls = -1;
  }

  feed({ data }, ts) {
    const said = JSON.parse(data);
    const add = (kind, delta) => [{ event: "chunk", data: { ts, index: 0, kind, delta } }];
    switch (said.type) {
      case "ping":
        return said.fairlane ? [{ event: "queued", data: { ts, position: said.fairlane.queuePosition, ...said.fairlane } }] : [];
      case "message_start":
        this._usage = said.message.usage;
        return [{ event: "start", data: { ts: this._sentAt, attempt: 1, model: said.message.model, queue: null } }];
      case "content_block_start": {
        const block = said.content_block;
        if (block.type !== "tool_use") return [];
        this._calls += 1;
        return add("tool", [{ index: this._calls, id: block.id, function: { name: block.name, arguments: "" } }]);
      }
      case "content_block_delta":
        return this._delta(said.delta, add);
      case "message_delta":
        this._finishReason = said.delta.stop_reason ?? this._finishReason;
        this._usage = { ...this._usage, ...said.usage };
        return [];
      case "message_stop":
        this.ended = true;
        return [{ event: "done", data: { ts, finishReason: this._finishReason, usage: this._usage, result: this._content } }];
      case "error": {
        this.ended = true;
        const { message, type, details } = said.error;
        const code = details?.error_code ?? type;
        if (code === "CANCELLED" || code === "cancelled") return [{ event: "cancelled", data: { ts, by: "client" } }];
        return [{ event: "error", data: { ts, error: message, code, retryable: false } }];
      }
      default:
        return []; // more may come to be said
    }
  }

  _delta(delta, add) {
    if (delta.type === "text_delta") {
      this._content += delta.text;
      return add("text", delta.text);
    }
    if (delta.type === "thinking_delta") return add("reasoning", delta.thinking);
    if (delta.type === "input_json_delta") return add("tool", [{ index: this._calls, function: { arguments: delta.partial_json } }]);
    return []; // a signature
  }
}

export const messages = {
  name: "messages",
  path: "/v1/messages",
  lacks: [],
  headers: { "anthropic-version": "2023-06-01" },
  body: conversation => ({
    model: conversation.model,
    max_tokens: conversation.maxTokens || MOST_TOKENS,
    ...(conversation.system ? { system: conversation.system } : {}),
    messages: turnsOf(conversation),
    ...(conversation.effort ? { output_config: { effort: conversation.effort } } : {}),
    ...(conversation.tools.length
      ? { tools: conversation.tools.map(({ name, description, parameters }) => ({ name, description, input_schema: parameters })) }
      : {}),
    stream: true,
  }),
  Reader: MessagesReader,
  sdk: {
    name: "anthropic",
    call: "messages.create",
    python: 'if event.type == "content_block_delta" and event.delta.type == "text_delta":\n    print(event.delta.text, end="", flush=True)',
    node: 'if (event.type === "content_block_delta" && event.delta.type === "text_delta") process.stdout.write(event.delta.text);',
  },
};
