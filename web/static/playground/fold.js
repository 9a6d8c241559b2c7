// What a task has come to: the client's fold over its events, and the times of the events. The page draws nothing but this.

import { INITIAL, fold } from "../client/fairlane.js";

/** When a task was submitted, ms since 1970: its id is a UUID of version 8 and begins with that time. */
export const submittedAt = taskId => parseInt(taskId.replaceAll("-", "").slice(0, 12), 16);

/** Tokens in and out, of the former those from a cache, of the latter those of thoughts; null if not reported. In all names that there are. */
export function tokensOf(usage) {
  const first = (...values) => values.find(value => typeof value === "number") ?? null;
  const read = usage?.cache_read_input_tokens;
  const cached = (read ?? 0) + (usage?.cache_creation_input_tokens ?? 0); // Anthropic counts them apart
  const input = first(usage?.prompt_tokens, usage?.promptTokens, usage?.inputTokens);
  const apart = first(usage?.input_tokens);
  return {
    input: input ?? (apart === null ? null : apart + cached),
    output: first(usage?.completion_tokens, usage?.output_tokens, usage?.completionTokens, usage?.outputTokens),
    cached: first(read, usage?.cachedTokens, usage?.prompt_tokens_details?.cached_tokens, usage?.input_tokens_details?.cached_tokens),
    reasoning: first(usage?.reasoningTokens, usage?.completion_tokens_details?.reasoning_tokens, usage?.output_tokens_details?.reasoning_tokens, usage?.output_tokens_details?.thinking_tokens),
  };
}

const NO_TIMES = { startedAt: null, firstAt: null, lastAt: null, endedAt: null };

export class TaskFold {
  /** `planned`: the stages of a chain, as far as they are known before they are reported. */
  constructor(taskId, planned = []) {
    this.task = { ...INITIAL, taskId };
    this.enqueuedAt = submittedAt(taskId);
    this.placedAt = 0; // when the place in the queue was reported, on the browser's clock
    this.differs = false; // the result counts, also where the chunks said something else
    this._planned = planned;
    Object.assign(this, NO_TIMES);
  }

  feed(event) {
    const { event: name, data } = event;
    const before = this.text;
    this.task = fold(this.task, event);
    if (name === "queued") this.placedAt = Date.now();
    else if (name === "restart" || name === "start") Object.assign(this, NO_TIMES, { differs: false }, name === "start" && { startedAt: data.ts });
    else if (name === "chunk") {
      this.firstAt ??= data.ts;
      this.lastAt = data.ts;
    } else if (this.ended) {
      this.endedAt = data.ts;
      this.differs = name === "done" && before !== "" && before !== this.text;
    }
  }

  get ended() {
    return ["completed", "failed", "cancelled"].includes(this.task.status);
  }

  /** The output: the text, or the result where it is none. */
  get text() {
    const { text, choices, result } = this.task;
    return text || choices[0]?.refusal || (result ? `\`\`\`json\n${JSON.stringify(result, null, 2)}\n\`\`\`\n` : "");
  }

  get reasoning() {
    return this.task.choices[0]?.reasoning ?? "";
  }

  /** The stages of a chain: { name, status, usage }. Earlier stages without a report were skipped. */
  get stages() {
    const { stage, stages, status } = this.task;
    const latest = Math.max(0, ...stages.map(({ index }) => index));
    return Array.from({ length: Math.max(latest, stage?.of ?? 0, this._planned.length) }, (_, at) => {
      const known = stages.find(({ index }) => index === at + 1);
      const { name = "", status: planned = "waiting" } = this._planned[at] ?? {};
      if (!known) return { name, status: planned === "waiting" && at < latest ? "skipped" : planned };
      return status === "cancelled" && ["queued", "executing"].includes(known.status) ? { ...known, status } : known;
    });
  }

  /** How long it waited, until its first output, and ran, ms; null for what is not known (yet). */
  get timings() {
    const between = (from, to) => (from === null || to === null ? null : Math.max(to - from, 0));
    const tokens = tokensOf(this.stages.length ? this.stages.at(-1).usage : this.task.usage); // what was written here, not by earlier stages
    const writing = between(this.firstAt, this.lastAt);
    return {
      waitedMs: between(this.enqueuedAt, this.startedAt ?? this.endedAt),
      firstMs: between(this.startedAt, this.firstAt),
      ranMs: between(this.startedAt, this.endedAt),
      perSecond: tokens.output > 1 && writing > 0 ? ((tokens.output - 1) * 1000) / writing : null,
    };
  }
}
