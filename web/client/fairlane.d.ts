// The types of fairlane.js. docs/http-api.md of Fairlane has every event.

export type JsonValue = null | boolean | number | string | JsonValue[] | { [name: string]: JsonValue };

// ---- errors ----------

/** What went wrong. `message` is the gateway's sentence. */
export class FairlaneError extends Error {
  readonly name: "FairlaneError";
  /**
   * - `refused`: the gateway did not take the call; a task that was to be submitted does not exist.
   * - `failed`: the task had been accepted, and ended without a result.
   * - `cancelled`: by its client, by an operator, or because no client read it any longer.
   * - `network`: no answer came. Whether a task was accepted is not known.
   */
  readonly kind: "refused" | "failed" | "cancelled" | "network";
  /** A code of docs/errors.md, or `NETWORK` (no answer), `TIMEOUT_HERE` (too late) or `NO_STREAM` (the answer is not the gateway's). */
  readonly code: string;
  /** The category of a failed task (`upstream`, `worker`, `request`, …), else empty. */
  readonly category: string;
  /** The HTTP status of a refusal, else 0. */
  readonly status: number;
  /** Whether the same call may go better later, after `retryAfterMs` where there is one. */
  readonly retryable: boolean;
  readonly retryAfterMs: number | null;
  readonly taskId: string | null;
  /** The errors of single members of a rejected body, by name. */
  readonly fields: Record<string, string>;
}

// ---- events ----------

export interface EventData {
  taskId: string;
  /** Milliseconds since 1970, on the gateway's clock. */
  ts: number;
}
/** Null where there is no measurement yet. */
export interface Estimate {
  estimatedWaitMs: number | null;
  estimatedWaitLowMs: number | null;
  estimatedWaitHighMs: number | null;
}
export interface QueuedData extends EventData, Estimate {
  /** From 1: next. */
  position: number;
  /** No measurement exists yet: the waits are null. */
  estimating?: boolean;
}
export interface StartData extends EventData {
  attempt: number;
  model: string;
  queue: string;
  /** It is asked for an answer again that did not match its schema. */
  repair?: boolean;
  /** Of a chain: the stage that begins (again), and its number, from 1. Earlier stages stay as they are. */
  stage?: string;
  index?: number;
  metadata?: JsonValue;
}
interface OfChoice extends EventData {
  /** The choice, from 0. */
  index: number;
  /** How many of the worker's deltas are joined in it. */
  n: number;
}
export interface TextChunkData extends OfChoice {
  kind: "text" | "reasoning" | "refusal";
  delta: string;
}
export interface ToolChunkData extends OfChoice {
  kind: "tool";
  /** OpenAI's tool call deltas. */
  delta: { [name: string]: JsonValue }[];
}
/** The choice has ended; `delta` says why, and is no text of the answer. */
export interface FinishChunkData extends OfChoice {
  kind: "finish";
  delta: string;
}
export interface ExtraChunkData extends OfChoice {
  kind: "extra";
  delta: { [name: string]: JsonValue };
}
export type ChunkData = TextChunkData | ToolChunkData | FinishChunkData | ExtraChunkData;
export interface ProgressData extends EventData {
  pct?: number | null;
  note?: string | null;
}
export interface StageData extends EventData {
  name: string;
  index: number;
  of: number;
  /** Of a chain: `queued`, `completed`, `skipped` or `failed`; else as the worker says. */
  status: string;
  /** What the stage of a chain used. */
  usage?: JsonValue;
}
/** What became of one stage of a chain. */
export interface StageEnd {
  name: string;
  status: "completed" | "skipped" | "failed";
  usage?: JsonValue;
}
export interface UsageData extends EventData {
  usage: JsonValue;
}
/** Its caller may call the endpoint now, once, until then: `permit` goes with it in the header `X-Fairlane-Permit`. */
export interface PermitData extends EventData {
  permit: string;
  endpoint: string;
  url: string;
  /** Milliseconds since 1970, on the gateway's clock. */
  expiresAt: number;
}
export interface DebugData extends EventData {
  note: string;
  data?: JsonValue;
}
export interface DoneData extends EventData {
  finishReason: string | null;
  result?: JsonValue;
  usage?: JsonValue;
  /** Of a chain, whose result is its last stage's and whose usage is that of all. */
  stages?: StageEnd[];
  metadata?: JsonValue;
}
export interface ErrorData extends EventData {
  error: string;
  code: string;
  category: string;
  retryable: boolean;
  retryAfterMs?: number | null;
  /** Of a task whose time is over; `model`: it ran. */
  waitedFor?: "queue" | "worker" | "cooldown" | "model";
  usage?: JsonValue;
  /** Of a chain: where it failed. */
  failedStage?: string;
  stages?: StageEnd[];
  metadata?: JsonValue;
}
export interface CancelledData extends EventData {
  by: string;
  metadata?: JsonValue;
}
/** The log does not hold what was seen last. `restart` follows. */
export interface GapData extends EventData {
  requested: string;
  earliest: string | null;
  reason: "expired" | "ahead" | "lost";
}
/** Forget all that was seen: it comes once more from the beginning. */
export interface RestartData extends EventData {
  reason: string;
}
/** This connection ends, the task does not; `follow` comes back by itself. */
export interface ByeData extends EventData {
  reason: string;
  reconnectMs: number;
}

interface Events {
  queued: QueuedData;
  start: StartData;
  chunk: ChunkData;
  progress: ProgressData;
  stage: StageData;
  usage: UsageData;
  permit: PermitData;
  debug: DebugData;
  done: DoneData;
  error: ErrorData;
  cancelled: CancelledData;
  gap: GapData;
  restart: RestartData;
  bye: ByeData;
}
type Unlogged = "queued" | "progress" | "gap" | "restart" | "bye";
/** An event. `id` is opaque: with it as `lastEventId`, another reading begins behind the event. */
export type TaskEvent = { [Name in keyof Events]: { id: Name extends Unlogged ? null : string; event: Name; data: Events[Name] } }[keyof Events];

// ---- following one task ----------

export type Connection = "connecting" | "open" | "lost" | "ended";

export interface FollowOptions {
  /** Stop reading: `follow` throws its reason. The task continues. */
  signal?: AbortSignal;
  /** More headers, such as `Authorization` where the URL is not a signed link. */
  headers?: Record<string, string>;
  /** Begin behind this event. Default: at the beginning. */
  lastEventId?: string;
  /** Called at every change; `problem`: why a connection was lost, null after a `bye`. It reconnects by itself. */
  onConnection?: (connection: "connecting" | "open" | "lost", problem: FairlaneError | null) => void;
  /** Returns a new link when the gateway rejects this one because it has expired (401). Where it fails, `follow` throws that rejection. */
  renew?: () => string | Promise<string>;
  /** How many attempts in a row may fail before it throws; the pauses between them grow to 15 s. Default 30: some six minutes. */
  maxRetries?: number;
  /** The first of those pauses. Default 500. */
  retryMs?: number;
  /** How long nothing at all may come, not even the gateway's sign of life (every 12 s). Default 45,000; 0: for ever. */
  silenceMs?: number;
  /** How long the gateway may take to begin its answer. Default 20,000; 0: for ever. */
  timeoutMs?: number;
  fetch?: typeof globalThis.fetch;
}

/**
 * A task's events from the beginning to its end, each once and in order, whatever breaks on the way: it comes back with the last
 * id it has seen. `gap`, `restart` and `bye` are handed over as well; after `restart` what was seen is to be forgotten (`fold`
 * does it). Ends after `done`, `error` or `cancelled`; leave the loop to stop earlier.
 *
 * `url`: a task's `streamUrl`, which needs no key. Throws FairlaneError when the gateway rejects it permanently (the link has expired, the
 * task is gone) or could not be reached `maxRetries` times.
 */
export function follow(url: string, options?: FollowOptions): AsyncGenerator<TaskEvent, void, undefined>;

/**
 * Calls `onTask` with all that is known of the task, now and at every change, until its end; the function that is returned stops it.
 * Never throws: if reading failed permanently, `connection` is `ended` and `error` says why.
 */
export function watch(url: string, onTask: (task: Task) => void, options?: Omit<FollowOptions, "signal" | "onConnection">): () => void;

export interface ToolCall {
  id: string;
  type: string;
  function: { name: string; arguments: string };
}
export interface Choice {
  text: string;
  reasoning: string;
  refusal: string;
  toolCalls: ToolCall[];
  finishReason: string | null;
}

export type Status = "queued" | "executing" | "completed" | "failed" | "cancelled";

/** What a task's events have said so far. Never changed: every event makes a new one. */
export interface Task extends Readonly<Estimate> {
  readonly taskId: string | null;
  readonly status: Status;
  /** The text of the first choice so far. At the end that of the result, also where no text came before. */
  readonly text: string;
  /** What came of each choice; empty where the worker sent its result in one piece. */
  readonly choices: readonly Choice[];
  /** Its place in the queue, from 1, while it waits. */
  readonly position: number | null;
  readonly attempt: number | null;
  readonly model: string | null;
  readonly queue: string | null;
  readonly progress: { pct: number | null; note: string | null } | null;
  readonly stage: { name: string; index: number; of: number; status: string } | null;
  /** The stages of a chain reported so far, at its end all of them; `index` from 1. */
  readonly stages: readonly { name: string; index: number; status: string; usage?: JsonValue }[];
  /** Of a chain that failed: in which stage. */
  readonly failedStage: string | null;
  readonly usage: JsonValue;
  readonly finishReason: string | null;
  /** When it is completed: the worker's own result, or what the chunks make up. */
  readonly result: JsonValue | undefined;
  /** Why it failed or was cancelled, or why it cannot be read any more. */
  readonly error: FairlaneError | null;
  readonly cancelledBy: string | null;
  readonly metadata: JsonValue | undefined;
  /** How it is read, by `watch` alone. */
  readonly connection: Connection;
  /** Why the connection was lost, while it is. */
  readonly problem: FairlaneError | null;
}

/** A task before its first event. */
export const INITIAL: Task;

/** The task after one more event. Pure: also a reducer. */
export function fold(task: Task, event: TaskEvent): Task;

/** The text of a result: of an OpenAI answer's first choice, a `content`, a string; undefined where there is none. */
export function textOf(result: JsonValue | undefined): string | undefined;

/** Server-sent events of any stream, as the standard reads them; `onBytes` gets every piece, also comments. */
export function readEvents(
  body: ReadableStream<Uint8Array>,
  onBytes?: () => void,
): AsyncGenerator<{ id: string | null; event: string; data: string }, void, undefined>;

// ---- calls ----------

/** Options in addition to a task's own members. */
export interface TaskOptions {
  model?: string;
  /** Default true: its events hold the output as it comes. With false most workers send one result at the end. */
  stream?: boolean;
  /** From submission to the end, ms. */
  timeout?: number;
  mode?: "stream" | "batch" | "vision";
  /** 0 to 5, among your own tasks. */
  priority?: number;
  onDisconnect?: "cancel" | "continue";
  resultTtlMs?: number;
  /** An answer that does not match its JSON schema is asked for again, once, as long as nothing of it was shown. */
  repair?: boolean;
  metadata?: JsonValue;
}
export interface CallOptions {
  signal?: AbortSignal;
}
export interface SubmitOptions extends CallOptions {
  /** The user, with a delegating key or at a gateway without keys. */
  user?: string;
  tier?: string;
  /** The same key and body are the same task: with it the call may be made again. 1 to 255 visible characters. */
  idempotencyKey?: string;
  headers?: Record<string, string>;
}
export interface Accepted extends ChainStatus, Partial<Estimate> {
  taskId: string;
  /** `queued`, unless an `idempotencyKey` names a task that was submitted before. */
  status: Status;
  /** From 1, while it waits; so are the waits. */
  position?: number;
  /** Until it has ended. */
  pollAfterMs?: number;
  /** It was submitted before, with this `idempotencyKey`. */
  replay?: true;
  idemKey?: string;
  /** A signed link, absolute: reads this one task's events without a key. It may be given to a page. */
  streamUrl: string;
  statusUrl: string;
}

/** How a chain stands; of any other task none of these is there. */
interface ChainStatus {
  /** Its name. */
  chain?: string;
  /** `OCR_PENDING`, … as the chain says; at the end `COMPLETED`, `FAILED` or `CANCELLED`. */
  stageStatus?: string;
  stages?: {
    name: string;
    status: "waiting" | "queued" | "executing" | "completed" | "skipped" | "failed" | "cancelled";
    /** Of one that runs several times, side by side. */
    parts?: number;
    partsDone?: number;
    usage?: JsonValue;
  }[];
}
interface Polled extends ChainStatus {
  taskId: string;
  /** The stage that a chain is in, or ended in; `index` from 1. */
  stage?: { name: string; index: number; of: number };
  /** The results of the stages of a chain that has ended, by their names. */
  results?: { [stage: string]: JsonValue };
  failedStage?: string;
  /** What all stages of a chain that has ended used. */
  usage?: JsonValue;
  metadata?: JsonValue;
}
export type TaskStatus =
  | (Polled & Estimate & { status: "queued"; enqueuedAt: number; position: number; pollAfterMs: number; streamUrl: string })
  | (Polled & { status: "executing"; workerId: string; startedAt: number; pollAfterMs: number; streamUrl: string })
  | (Polled & { status: "completed"; completedAt: number; result: JsonValue })
  | (Polled & { status: "failed"; failedAt: number; error: string; code: string; category: string; retryable: boolean })
  | (Polled & { status: "cancelled"; cancelledAt: number });

export interface FairlaneOptions {
  /** The gateway's address. Default, in a page: where the page comes from. */
  baseUrl?: string | URL;
  /** Never in a page: give pages a `streamUrl`. */
  key?: string;
  /** With every call. */
  headers?: Record<string, string>;
  /** How long a call may take. Default 20,000; 0: for ever. */
  timeoutMs?: number;
  fetch?: typeof globalThis.fetch;
}

/**
 * Any call of a gateway: its answer, read by `read` (default: as JSON) within `timeoutMs`. Throws FairlaneError unless the status is a
 * success, and the reason of `signal` when that has ended it.
 */
export function request<Answer = JsonValue>(
  url: string,
  options?: {
    /** Default: POST with a body, else GET. */
    method?: string;
    body?: unknown;
    headers?: Record<string, string>;
    signal?: AbortSignal;
    timeoutMs?: number;
    fetch?: typeof globalThis.fetch;
    read?: (response: Response) => Promise<Answer>;
  },
): Promise<Answer>;

/** The calls of a gateway. Each throws FairlaneError, or the reason of `signal` when that has ended it. */
export class Fairlane {
  constructor(options?: FairlaneOptions);
  readonly baseUrl: string;
  /** Submit an OpenAI chat request, or any JSON object, and do not wait for it. Not repeated by itself: without an `idempotencyKey` it may have been accepted. */
  submit(body: TaskOptions & { messages?: unknown; [member: string]: unknown }, options?: SubmitOptions): Promise<Accepted>;
  /** Submit a task of any type: `payload` is what the worker gets. */
  submitTask(task: TaskOptions & { type: string; payload: unknown }, options?: SubmitOptions): Promise<Accepted>;
  /** Submit a chain of stages, by its name in the configuration of a gateway. */
  submitTask(
    task: Omit<TaskOptions, "model" | "mode" | "repair"> & {
      chain: string;
      variables?: { [name: string]: JsonValue };
      locale?: string;
    },
    options?: SubmitOptions,
  ): Promise<Accepted>;
  /** How a task stands. */
  poll(taskId: string, options?: CallOptions): Promise<TaskStatus>;
  /** Poll until the end, as often as the gateway asks to. Throws FairlaneError where the task failed or was cancelled. */
  result(taskId: string, options?: CallOptions & { onStatus?: (task: TaskStatus) => void; maxRetries?: number; retryMs?: number }): Promise<JsonValue>;
  /** Cancel it; also fine when it has ended: `status` says how. */
  cancel(taskId: string, options?: CallOptions): Promise<{ taskId: string; status: Status }>;
  /** The events of one's own task, by the key. A page without one uses the function `follow` with the task's `streamUrl`. */
  follow(taskId: string, options?: FollowOptions): AsyncGenerator<TaskEvent, void, undefined>;
  /** The same, with the callback of `watch`. */
  watch(taskId: string, onTask: (task: Task) => void, options?: Omit<FollowOptions, "signal" | "onConnection">): () => void;
}
