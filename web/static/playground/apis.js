// The APIs that the form can send a request through, and the connection of one such request.

import { FairlaneError, readEvents } from "../client/fairlane.js";
import { call } from "../common/api.js";

const IDLE_MS = 60_000;
const MESSAGES_MAX_TOKENS = 4096; // Messages requires a number

const chat = ({ model, system, prompt, maxTokens }) => ({
  model,
  messages: [...(system ? [{ role: "system", content: system }] : []), { role: "user", content: prompt }],
  ...(maxTokens ? { max_tokens: maxTokens } : {}),
});

const STREAM = { stream: true, stream_options: { include_usage: true } };

/** What a chunk of chat or completions adds. */
function readOpenAI(chunk) {
  if (chunk.error) return { error: chunk.error };
  if (chunk.fairlane) return { place: chunk.fairlane };
  const { delta = {}, text, finish_reason: finishReason } = chunk.choices?.[0] ?? {};
  return {
    model: chunk.model,
    text: text ?? delta.content ?? delta.refusal,
    reasoning: delta.reasoning_content ?? delta.reasoning,
    finishReason,
    usage: chunk.usage,
  };
}

/** What an event of Anthropic's Messages adds. */
function readMessages({ type, message, delta = {}, usage, error, fairlane }) {
  switch (type) {
    case "ping":
      return { place: fairlane };
    case "message_start":
      return { model: message.model, usage: message.usage };
    case "content_block_delta":
      return { text: delta.text, reasoning: delta.thinking };
    case "message_delta":
      return { finishReason: delta.stop_reason, usage };
    case "message_stop":
      return { ended: true };
    case "error":
      return { error: { message: error.message, code: error.details?.error_code ?? error.type } };
    default:
      return {};
  }
}

/** What an event of OpenAI's Responses adds. */
function readResponses({ type, delta, response, error, fairlane = response?.fairlane, ...more }) {
  switch (type) {
    case "response.queued":
      return { place: fairlane };
    case "response.in_progress":
      return { model: response.model };
    case "response.output_text.delta":
    case "response.refusal.delta":
      return { text: delta };
    case "response.reasoning_text.delta":
    case "response.reasoning_summary_text.delta":
      return { reasoning: delta };
    case "response.completed":
    case "response.incomplete":
      return { finishReason: response.incomplete_details?.reason ?? response.status, usage: response.usage, ended: true };
    case "response.failed":
      return { error: response.error };
    case "error":
      return { error: error ?? more };
    default:
      return {};
  }
}

/**
 * By name: { path, headers, body(asked), read(frame) }. `asked` is { model, system, prompt, maxTokens }; `read` returns what a frame of the
 * stream adds. `fairlane` has no `read`, as its tasks are followed by their event log.
 */
export const APIS = {
  fairlane: { path: "/api/openai", body: asked => ({ ...chat(asked), stream: true, async: true }) },
  chat: { path: "/v1/chat/completions", body: asked => ({ ...chat(asked), ...STREAM }), read: readOpenAI },
  responses: {
    path: "/v1/responses",
    body: ({ model, system, prompt, maxTokens }) => ({
      model,
      ...(system ? { instructions: system } : {}),
      input: prompt,
      ...(maxTokens ? { max_output_tokens: maxTokens } : {}),
      store: false,
      stream: true,
    }),
    read: readResponses,
  },
  messages: {
    path: "/v1/messages",
    headers: { "anthropic-version": "2023-06-01" },
    body: ({ model, system, prompt, maxTokens }) => ({
      model,
      max_tokens: maxTokens || MESSAGES_MAX_TOKENS,
      ...(system ? { system } : {}),
      messages: [{ role: "user", content: prompt }],
      stream: true,
    }),
    read: readMessages,
  },
  completions: {
    path: "/v1/completions",
    body: ({ model, system, prompt, maxTokens }) => ({
      model,
      prompt: system ? `${system}\n\n${prompt}` : prompt,
      ...(maxTokens ? { max_tokens: maxTokens } : {}),
      ...STREAM,
    }),
    read: readOpenAI,
  },
};

/**
 * One request through an API other than Fairlane's: `onEvent({ event, data })` gets what arrives, as the events of a task's log;
 * `onState(state, error)`: open, ended, refused (why). Disconnecting, by `close`, cancels the task.
 */
export class ApiRequest {
  constructor(api, { onAccepted, onEvent, onState }) {
    this.state = "connecting";
    this.lastId = "";
    this._api = api;
    this._onAccepted = onAccepted;
    this._onEvent = onEvent;
    this._onState = onState;
    this._closed = new AbortController();
  }

  /** Send the request and read its stream. Resolves after `onAccepted(taskId)`. Throws FairlaneError if the gateway rejects it. */
  send(body, headers) {
    this._sentAt = Date.now();
    return new Promise((accept, reject) => {
      const read = response => {
        this._onAccepted(response.headers.get("x-task-id"));
        accept();
        this._enter("open");
        return this._read(response.body);
      };
      const options = { body, headers: { ...headers, ...this._api.headers }, signal: this._closed.signal, timeoutMs: 0, read };
      const ended = error => {
        clearTimeout(this._timer);
        if (error.name !== "AbortError") this._enter("refused", error);
        reject(error);
      };
      call(this._api.path, options).then(() => this._enter("ended"), ended);
    });
  }

  close() {
    this._closed.abort();
    this.state = "ended";
  }

  async _read(body) {
    const end = { usage: null, finishReason: null };
    let text = "";
    let started = false;
    for await (const { data } of readEvents(body, () => this._heard())) {
      const part = data === "[DONE]" ? { ended: true } : this._api.read(JSON.parse(data));
      if (part.error) {
        const { code, message } = part.error;
        if (code?.toLowerCase() === "cancelled") this._emit("cancelled", { by: "client" });
        else this._emit("error", { error: message, code, retryable: false });
        return;
      }
      if (part.place?.queuePosition) this._emit("queued", { position: part.place.queuePosition, ...part.place });
      if (part.usage) end.usage = { ...end.usage, ...part.usage };
      end.finishReason = part.finishReason ?? end.finishReason;
      if (!started && (part.model || part.text || part.reasoning || part.ended)) {
        started = true; // the stream does not say when the task began to run: its times count from the request
        this._emit("start", { attempt: 1, model: part.model ?? null, queue: null, ts: this._sentAt });
      }
      for (const kind of ["reasoning", "text"]) if (part[kind]) this._emit("chunk", { index: 0, kind, delta: part[kind] });
      text += part.text ?? "";
      if (part.ended) {
        this._emit("done", { ...end, result: text });
        return;
      }
    }
    throw new FairlaneError("network", "NETWORK", "The stream broke off");
  }

  /** Give the stream up if no bytes arrive for a minute. */
  _heard() {
    clearTimeout(this._timer);
    this._timer = setTimeout(() => this._closed.abort(new FairlaneError("network", "TIMEOUT_HERE", "The stream fell silent")), IDLE_MS);
  }

  _emit(event, data) {
    this._onEvent({ event, data: { ts: Date.now(), ...data } });
  }

  _enter(state, error = null) {
    this.state = state;
    this._onState(state, error);
  }
}
