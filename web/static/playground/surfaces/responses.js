// OpenAI's Responses. In the background a response goes on by itself, and its stream can be read on behind any event.

import { Problem } from "../../common/api.js";

/** The conversation as input items. */
function inputOf({ turns }) {
  return turns.flatMap(turn => {
    if (turn.role === "tool") return [{ type: "function_call_output", call_id: turn.id, output: turn.text }];
    if (turn.role === "user") return [{ role: "user", content: turn.text }];
    const calls = turn.calls.map(({ id, name, arguments: text }) => ({ type: "function_call", call_id: id, name, arguments: text }));
    return [...(turn.text ? [{ role: "assistant", content: turn.text }] : []), ...calls];
  });
}

/**
 * Reads the stream (see OpenAIReader); throws Problem where the stream ends and the response does not. `number` is the sequence number of the last event, `id` the response's, and `background` whether
 * it goes on without its reader; null before they are known.
 */
export class ResponsesReader {
  constructor(sentAt) {
    this.ended = false;
    this.number = null;
    this.id = null;
    this.background = null;
    this._sentAt = sentAt;
    this._started = false;
    this._content = "";
    this._calls = new Map(); // by the item's place: the call's number
  }

  feed({ data }, ts) {
    if (data === "[DONE]") return []; // the end was told before
    const said = JSON.parse(data);
    this.number = said.sequence_number ?? this.number; // that of `response.queued` comes again with each place in line
    const add = (kind, delta) => [...this._begin(null), { event: "chunk", data: { ts, index: 0, kind, delta } }];
    switch (said.type) {
      case "response.created":
      case "response.queued":
      case "response.in_progress":
        return this._at(said, ts);
      case "response.output_item.added": {
        const { type, call_id: id, name, arguments: text = "" } = said.item;
        if (type !== "function_call") return [];
        this._calls.set(said.output_index, this._calls.size);
        return add("tool", [{ index: this._calls.size - 1, id, function: { name, arguments: text } }]);
      }
      case "response.output_text.delta":
      case "response.refusal.delta":
        this._content += said.delta;
        return add(said.type === "response.refusal.delta" ? "refusal" : "text", said.delta);
      case "response.reasoning_text.delta":
      case "response.reasoning_summary_text.delta":
        return add("reasoning", said.delta);
      case "response.function_call_arguments.delta":
        return add("tool", [{ index: this._calls.get(said.output_index) ?? 0, function: { arguments: said.delta } }]);
      case "response.completed":
      case "response.incomplete":
      case "response.failed":
        return this._end(said.response, ts);
      case "error": {
        const { message, code } = said.error ?? said;
        if (this.background) throw new Problem(0, code, message); // it is the stream that failed: the response goes on
        this.ended = true;
        return [{ event: "error", data: { ts, error: message, code, retryable: false } }];
      }
      default:
        return []; // parts and items that begin and end, and what may come to be said
    }
  }

  _at({ type, response, fairlane = response.fairlane }, ts) {
    this.id = response.id;
    this.background = Boolean(response.background);
    if (type === "response.in_progress") return this._begin(response.model);
    return fairlane?.queuePosition ? [{ event: "queued", data: { ts, position: fairlane.queuePosition, ...fairlane } }] : [];
  }

  _begin(model) {
    if (this._started) return [];
    this._started = true;
    return [{ event: "start", data: { ts: this._sentAt, attempt: 1, model, queue: null } }];
  }

  _end({ status, error, incomplete_details: why, usage, model }, ts) {
    this.ended = true;
    if (status === "cancelled") return [{ event: "cancelled", data: { ts, by: "client", usage } }];
    if (status === "failed") return [{ event: "error", data: { ts, error: error?.message, code: error?.code, usage, retryable: false } }];
    const done = { ts, finishReason: why?.reason ?? status, usage, result: this._content };
    return [...this._begin(model), { event: "done", data: done }];
  }
}

export const responses = {
  name: "responses",
  path: "/v1/responses",
  lacks: [],
  /** `background`: whether it goes on without its reader. Otherwise nothing of it is kept. */
  body: (conversation, { background = false } = {}) => ({
    model: conversation.model,
    ...(conversation.system ? { instructions: conversation.system } : {}),
    input: inputOf(conversation),
    ...(conversation.maxTokens ? { max_output_tokens: conversation.maxTokens } : {}),
    ...(conversation.effort ? { reasoning: { effort: conversation.effort } } : {}),
    ...(conversation.tools.length ? { tools: conversation.tools.map(tool => ({ type: "function", strict: false, ...tool })) } : {}),
    ...(background ? { background: true } : { store: false }),
    stream: true,
  }),
  Reader: ResponsesReader,
  /** Where the stream of a response goes on behind what `reader` has seen; null where it cannot. */
  onward: ({ id, number, background }) => (id !== null && background ? streamOf(id, number) : null),
  sdk: {
    name: "openai",
    call: "responses.create",
    python: 'if event.type == "response.output_text.delta":\n    print(event.delta, end="", flush=True)',
    node: 'if (event.type === "response.output_text.delta") process.stdout.write(event.delta);',
  },
};

/** The stream of a kept response, from its beginning or behind an event. */
export const streamOf = (id, number = null) => `/v1/responses/${id}?stream=true${number === null ? "" : `&starting_after=${number}`}`;

/** The task that a response is. */
export const taskOf = id => id.replace(/^resp_/, "");
