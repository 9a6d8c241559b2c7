// The APIs that the form can send a request through, and the connection of one such request.

import { readEvents } from "../client/fairlane.js";
import { Problem, send } from "../common/api.js";

const IDLE_MS = 60_000;
const MESSAGES_MAX_TOKENS = 4096; // Messages requires a number
const SHOWN_NUMBERS = 4; // of a vector

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
 * stream adds. `fairlane` has no `read`, as its tasks are followed by their event log; `embeddings` has none, as it does not stream.
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
  embeddings: { path: "/v1/embeddings", body: ({ model, prompt }) => ({ model, input: prompt.split("\n").filter(line => line.trim()) }) },
};

/** An embeddings answer with the first numbers of each vector. */
const shortened = answer => ({
  ...answer,
  data: answer.data?.map(item => ({ ...item, embedding: [...item.embedding.slice(0, SHOWN_NUMBERS), `… ${item.embedding.length}`] })),
});

/**
 * One request through an API other than Fairlane's: `onEvent({ event, data })` gets what arrives, as the events of a task's log;
 * `onState(state, problem)`: open, ended, refused (why). `accepted` resolves to the task's id or rejects with Problem; `go()` then reads.
 * Disconnecting, by `close`, cancels the task.
 */
export class ApiRequest {
  constructor(api, body, { headers, onEvent, onState }) {
    this.state = "connecting";
    this.lastId = "";
    this._api = api;
    this._onEvent = onEvent;
    this._onState = onState;
    this._closed = new AbortController();
    this._sentAt = Date.now();
    this._response = send(api.path, { body, headers: { ...headers, ...api.headers }, signal: this._closed.signal });
    this.accepted = this._response.then(response => response.headers.get("x-task-id"));
  }

  close() {
    this._closed.abort();
    this.state = "ended";
  }

  async go() {
    try {
      const response = await this._response;
      this._enter("open");
      if (this._api.read) await this._readStream(response);
      else await this._readAnswer(response);
      this._enter("ended");
    } catch (error) {
      if (this._closed.signal.aborted) return;
      this._enter("refused", error instanceof Problem ? error : new Problem(0, "NETWORK", error.message));
    } finally {
      clearTimeout(this._timer);
    }
  }

  async _readAnswer(response) {
    const answer = await response.json();
    this._start(answer.model);
    this._emit("done", { finishReason: null, usage: answer.usage, result: shortened(answer) });
  }

  async _readStream(response) {
    const end = { usage: null, finishReason: null };
    let text = "";
    let started = false;
    for await (const { data } of readEvents(response.body, () => this._heard())) {
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
        started = true;
        this._start(part.model ?? null);
      }
      for (const kind of ["reasoning", "text"]) if (part[kind]) this._emit("chunk", { index: 0, kind, delta: part[kind] });
      text += part.text ?? "";
      if (part.ended) {
        this._emit("done", { ...end, result: text });
        return;
      }
    }
    throw new Problem(0, "NETWORK", "The stream broke off");
  }

  /** Give the stream up when nothing comes any more. */
  _heard() {
    clearTimeout(this._timer);
    this._timer = setTimeout(() => {
      this.close();
      this._enter("refused", new Problem(0, "TIMEOUT_HERE", "The stream fell silent"));
    }, IDLE_MS);
  }

  /** The stream does not say when the task began to run: its times count from the request. */
  _start(model) {
    this._emit("start", { attempt: 1, model, queue: null, ts: this._sentAt });
  }

  _emit(event, data) {
    if (!this._closed.signal.aborted) this._onEvent({ event, data: { ts: Date.now(), ...data } });
  }

  _enter(state, problem = null) {
    this.state = state;
    this._onState(state, problem);
  }
}
