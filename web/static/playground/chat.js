// A chat completion on the OpenAI surface, by fetch, told in the events that a task's log would have.

import { Problem, send } from "../common/api.js";
import { readEvents } from "../common/sse.js";

const IDLE_MS = 60_000;

/**
 * Ask, and tell what comes: `onEvent({ event, data })` as in the native stream, `onEvent({ connection, problem })` for the connection.
 *
 * Returns at once: `accepted` is the task's id as soon as there is one (rejects with Problem), `go()` begins to tell, `cut()` and
 * `close()` leave, whereupon the gateway cancels the task: an OpenAI stream cannot be resumed.
 */
export function chatStream(body, headers, onEvent) {
  const leaving = new AbortController();
  const sentAt = Date.now();
  const options = { body, headers: { ...headers, Accept: "text/event-stream" }, signal: leaving.signal, timeoutMs: 0 };
  const response = send("/v1/chat/completions", options);
  const source = {
    state: "connecting",
    lastId: "",
    connections: 1,
    events: 0,
    missing: 0,
    doubled: 0,
    accepted: response.then(answer => answer.headers.get("x-task-id")),
    close() {
      source.state = "ended";
      leaving.abort();
    },
    cut() {
      source.state = "cut";
      leaving.abort();
      onEvent({ connection: "cut" });
    },
    async go() {
      try {
        source.state = "open";
        onEvent({ connection: "open" });
        await tell(await response, sentAt, onEvent);
        source.state = "ended";
        onEvent({ connection: "ended" });
      } catch (error) {
        if (leaving.signal.aborted) return;
        source.state = "refused";
        onEvent({ connection: "refused", problem: error instanceof Problem ? error : new Problem(0, "NETWORK", String(error)) });
      }
    },
  };
  return source;
}

/** This surface does not tell when a task began to run, so its times count from `sentAt`. */
async function tell(response, sentAt, onEvent) {
  let started = false;
  let finishReason = null;
  let usage = null;
  let content = "";
  const begin = model => {
    if (!started) onEvent({ event: "start", data: { ts: sentAt, attempt: 1, model, queue: null } });
    started = true;
  };
  for await (const { data } of readEvents(response, { idleMs: IDLE_MS })) {
    const ts = Date.now();
    if (data === "[DONE]") {
      begin(null);
      onEvent({ event: "done", data: { ts, finishReason, usage, result: content } });
      return;
    }
    const chunk = JSON.parse(data);
    if (chunk.error) {
      const { message, code } = chunk.error;
      const ended = code === "cancelled" ? { event: "cancelled", data: { ts, by: "client" } } : null;
      onEvent(ended ?? { event: "error", data: { ts, error: message, code, retryable: false } });
      return;
    }
    if (chunk.fairlane) {
      onEvent({ event: "queued", data: { ts, position: chunk.fairlane.queuePosition, ...chunk.fairlane } });
      continue;
    }
    usage = chunk.usage ?? usage;
    const choice = chunk.choices?.[0];
    if (!choice) continue;
    begin(chunk.model);
    const delta = choice.delta ?? {};
    const reasoning = delta.reasoning_content ?? delta.reasoning;
    if (reasoning) onEvent({ event: "chunk", data: { ts, index: 0, kind: "reasoning", delta: reasoning } });
    if (delta.content) {
      content += delta.content;
      onEvent({ event: "chunk", data: { ts, index: 0, kind: "text", delta: delta.content } });
    }
    if (delta.tool_calls) onEvent({ event: "chunk", data: { ts, index: 0, kind: "tool", delta: delta.tool_calls } });
    finishReason = choice.finish_reason ?? finishReason;
  }
  throw new Problem(0, "NETWORK", "The stream broke off");
}
