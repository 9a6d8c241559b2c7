// What a task has come to, as a pure fold over its events: the page draws nothing but this.

import { textOf } from "../client/fairlane.js";

/** When a task was submitted, ms since 1970: its id is a UUID of version 8 and begins with that time. */
export const submittedAt = taskId => parseInt(taskId.replaceAll("-", "").slice(0, 12), 16);

/** Tokens in and out, of the former those from a cache, of the latter those of thoughts; null if not reported. In all names that there are. */
export function tokensOf(usage) {
  const first = (...values) => values.find(value => typeof value === "number") ?? null;
  const read = usage?.cache_read_input_tokens;
  const beside = (read ?? 0) + (usage?.cache_creation_input_tokens ?? 0); // Anthropic counts them apart
  const input = first(usage?.prompt_tokens, usage?.promptTokens, usage?.inputTokens);
  const apart = first(usage?.input_tokens);
  return {
    input: input ?? (apart === null ? null : apart + beside),
    output: first(usage?.completion_tokens, usage?.output_tokens, usage?.completionTokens, usage?.outputTokens),
    cached: first(read, usage?.cachedTokens, usage?.prompt_tokens_details?.cached_tokens, usage?.input_tokens_details?.cached_tokens),
    reasoning: first(usage?.reasoningTokens, usage?.completion_tokens_details?.reasoning_tokens, usage?.output_tokens_details?.reasoning_tokens, usage?.output_tokens_details?.thinking_tokens),
  };
}

export class TaskFold {
  constructor(taskId) {
    this.taskId = taskId;
    this.state = "queued";
    this.place = null; // { position, estimateMs, lowMs, highMs }
    this.enqueuedAt = submittedAt(taskId);
    this.stages = []; // of a chain: { name, status }, as far as they were reported
    this._forget();
  }

  _forget() {
    this.model = null;
    this.queue = null;
    this.attempt = 0;
    this.text = "";
    this.reasoning = "";
    this.usage = null;
    this.result = null;
    this.error = null;
    this.finishReason = null;
    this.startedAt = null;
    this.firstAt = null;
    this.lastAt = null;
    this.endedAt = null;
    this.differs = false;
  }

  /**
   * Take an event { event, data }; what became of the text: "" (nothing), "more" (the delta was added), "new" (another text); "thought":
   * the delta was added to the reasoning.
   */
  feed({ event, data }) {
    switch (event) {
      case "queued":
        this.state = "queued";
        this.place = placeOf(data);
        return "";
      case "restart":
        this._forget();
        this.stages = this.stages.map(({ name }) => ({ name, status: "waiting" }));
        return "new";
      case "start":
        return this._start(data);
      case "chunk":
        return this._chunk(data);
      case "stage":
        this._stage(data);
        return "";
      case "usage":
        this.usage = data.usage;
        return "";
      case "done":
      case "error":
      case "cancelled":
        return this._end(event, data);
      default:
        return "";
    }
  }

  _start(data) {
    const had = this.text !== "";
    this._forget();
    this.state = "executing";
    this.place = null;
    const again = data.stage && this.stages[data.index - 1]?.status === "executing";
    this.attempt = data.stage ? (again ? this.attempt + 1 : 1) : data.attempt; // of a chain: of this stage, as each counts from 1
    this.model = data.model;
    this.queue = data.queue;
    this.startedAt = data.ts;
    if (data.stage) this._stage({ name: data.stage, index: data.index, status: "executing" });
    return had ? "new" : "";
  }

  /** The status of one of several stages; `index` from 1. Earlier stages without a report were skipped. */
  _stage({ name, index, of, status, usage }) {
    const most = Math.max(this.stages.length, of ?? 0, index);
    this.stages = Array.from({ length: most }, (_, at) => {
      const known = this.stages[at] ?? { name: "", status: "waiting" };
      if (at + 1 === index) return { name, status, usage };
      return at + 1 < index && known.status === "waiting" ? { ...known, status: "skipped" } : known;
    });
  }

  _chunk(data) {
    this.firstAt ??= data.ts;
    this.lastAt = data.ts;
    if (data.index !== 0) return "";
    if (data.kind === "text" || data.kind === "refusal") {
      this.text += data.delta;
      return "more";
    }
    if (data.kind === "reasoning") {
      this.reasoning += data.delta;
      return "thought";
    }
    if (data.kind === "finish") this.finishReason = data.delta;
    return "";
  }

  _end(event, data) {
    this.endedAt = data.ts;
    this.place = null;
    this.usage = data.usage ?? this.usage;
    if (data.stages) this.stages = data.stages;
    if (event === "cancelled") {
      this.stages = this.stages.map(stage => (["queued", "executing"].includes(stage.status) ? { ...stage, status: "cancelled" } : stage));
      this.state = "cancelled";
      this.by = data.by;
      return "";
    }
    if (event === "error") {
      this.state = "failed";
      this.error = data;
      return "";
    }
    this.state = "completed";
    this.result = data.result;
    this.finishReason = data.finishReason ?? this.finishReason;
    const told = textOf(data.result) ?? null;
    if (told === null || told === this.text) {
      if (told === null && !this.text && data.result !== null && data.result !== undefined) {
        this.text = "```json\n" + JSON.stringify(data.result, null, 2) + "\n```\n";
        return "new";
      }
      return "";
    }
    this.differs = this.text !== ""; // the result counts, also where the chunks said something else
    this.text = told;
    return "new";
  }

  /** How long it waited, until its first output, and ran, ms; null for what is not known (yet). */
  get timings() {
    const between = (from, to) => (from === null || to === null ? null : Math.max(to - from, 0));
    const tokens = tokensOf(this.stages.length ? this.stages.at(-1).usage : this.usage); // what was written here, not by earlier stages
    const writing = between(this.firstAt, this.lastAt);
    return {
      waitedMs: between(this.enqueuedAt, this.startedAt ?? this.endedAt),
      firstMs: between(this.startedAt, this.firstAt),
      ranMs: between(this.startedAt, this.endedAt),
      perSecond: tokens.output > 1 && writing > 0 ? ((tokens.output - 1) * 1000) / writing : null,
    };
  }
}

/** A place in the queue, from a `queued` event, a 202, or a poll. */
export function placeOf(data) {
  return {
    position: data.position,
    estimateMs: data.estimatedWaitMs ?? null,
    lowMs: data.estimatedWaitLowMs ?? null,
    highMs: data.estimatedWaitHighMs ?? null,
  };
}
