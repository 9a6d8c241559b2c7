// A program that uses every name of the client: it need only compile, and where it says so must not.

import { Fairlane, FairlaneError, INITIAL, fold, follow, readEvents, request, textOf, watch } from "fairlane-client";
import type { Accepted, Task, TaskEvent, TaskStatus } from "fairlane-client";

const gateway = new Fairlane({ baseUrl: new URL("https://gateway.example"), key: "k", timeoutMs: 5000 });

export async function submits(signal: AbortSignal): Promise<string> {
  const accepted: Accepted = await gateway.submit({ model: "m", messages: [], temperature: 0.5, priority: 5 }, { user: "u", signal });
  await gateway.submitTask({ type: "resize", payload: { width: 3 }, metadata: { page: 7 } });
  // @ts-expect-error: a task has a type
  await gateway.submitTask({ payload: {} });
  // @ts-expect-error: no such mode
  await gateway.submit({ mode: "fast" });
  const again = await gateway.submit({ messages: [] }, { idempotencyKey: "k" });
  if (again.replay) console.log(again.idemKey?.length, again.position?.toFixed());
  return accepted.streamUrl;
}

export async function follows(url: string): Promise<string> {
  let text = "";
  let task: Task = INITIAL;
  for await (const event of follow(url, { renew: async () => url, onConnection: (state, problem) => console.log(state, problem?.code) })) {
    task = fold(task, event);
    if (event.event === "chunk" && event.data.kind === "text") text += event.data.delta;
    if (event.event === "chunk" && event.data.kind === "tool") console.log(event.data.delta[0]?.["id"]);
    if (event.event === "queued") console.log(event.data.position.toFixed(), event.data.estimatedWaitMs?.toFixed());
    if (event.event === "bye") console.log(event.data.reconnectMs);
    // @ts-expect-error: a chunk's delta need not be text
    if (event.event === "chunk") text += event.data.delta.trim();
    remember(event);
  }
  // @ts-expect-error: what `fold` returns is not to be changed
  task.text = "";
  return task.choices[0]?.toolCalls[0]?.function.arguments ?? textOf(task.result) ?? text;
}

function remember(event: TaskEvent): string {
  // @ts-expect-error: some events have no id
  const id: string = event.id;
  return id;
}

export async function polls(taskId: string): Promise<unknown> {
  const task: TaskStatus = await gateway.poll(taskId);
  if (task.status === "queued") return task.position;
  if (task.status === "failed") return task.error.length + (task.code === "TOTAL_TIMEOUT" ? 1 : 0);
  // @ts-expect-error: only a completed task has a result
  if (task.status === "executing") return task.result;
  try {
    return await gateway.result(taskId, { onStatus: ({ status }) => console.log(status) });
  } catch (error) {
    if (error instanceof FairlaneError && error.kind === "refused" && error.code === "QUEUE_FULL") return error.retryAfterMs?.toFixed();
    throw error;
  } finally {
    await gateway.cancel(taskId);
  }
}

export function watches(url: string): () => void {
  gateway.watch("id", task => console.log(task.progress?.pct, task.error?.message))();
  // @ts-expect-error: `watch` has its own
  watch(url, () => {}, { signal: new AbortController().signal });
  return watch(url, (task: Task) => console.log(task.status satisfies "queued" | "executing" | "completed" | "failed" | "cancelled"));
}

export async function reads(body: ReadableStream<Uint8Array>): Promise<void> {
  for await (const { id, event, data } of readEvents(body)) console.log(id?.length, event, data);
}

export const asks = async (): Promise<number> => (await request("https://gateway.example/v1/models", { read: async response => response.status })).valueOf();
