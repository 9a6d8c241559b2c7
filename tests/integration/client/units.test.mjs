// What needs no gateway: reading of frames, folding of events, errors and pauses against a fetch that answers as told.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Fairlane, FairlaneError, INITIAL, follow, fold, readEvents, textOf, watch } from "fairlane-client";

const bytes = text => new TextEncoder().encode(text);
const streamOf = (text, size = 1e9) => {
  const all = bytes(text);
  return new ReadableStream({
    start(controller) {
      for (let at = 0; at < all.length; at += size) controller.enqueue(all.slice(at, at + size));
      controller.close();
    },
  });
};
const frame = (event, data, id) => `${id === undefined ? "" : `id: ${id}\n`}event: ${event}\ndata: ${JSON.stringify(data)}\n\n`;
const events = async reading => {
  const all = [];
  for await (const event of reading) all.push(event);
  return all;
};
/** A fetch that gives these answers one after the other; what it was asked stands in `asked`. */
const answers = (...list) => {
  const asked = [];
  const fetch = async (url, { headers, signal }) => {
    asked.push({ url, headers });
    const next = list.shift();
    if (next instanceof Error) throw next;
    return typeof next === "function" ? next(signal) : next;
  };
  return { asked, fetch };
};
const sse = text => new Response(streamOf(text), { headers: { "Content-Type": "text/event-stream; charset=utf-8" } });
const refused = (status, body, headers = {}) => new Response(JSON.stringify(body), { status, headers });
const DONE = frame("done", { taskId: "t", ts: 1, finishReason: "stop", result: "x" }, "1-9");

test("frames are read as the standard says, however they are cut", async () => {
  const text = ": c\n\nid: 1-1\nevent: a\ndata: one\ndata:two\n\nretry: 50\r\ndata: 😀\r\n\r\ndata\n\nevent: lost\n\nid:\nevent: restart\ndata: {}\n\ndata: cut";
  const expected = [
    { id: "1-1", event: "a", data: "one\ntwo" },
    { id: null, event: "message", data: "😀" },
    { id: null, event: "message", data: "" },
    { id: "", event: "restart", data: "{}" },
  ];
  for (let size = 1; size < 40; size += 1) assert.deepEqual(await events(readEvents(streamOf(text, size))), expected);
});

test("a line of 16 MiB that comes in small pieces is read in no time that grows with its square", async () => {
  const [whole] = await events(readEvents(streamOf(`data: ${"x".repeat(16 << 20)}\n\n`, 16 << 10)));
  assert.equal(whole.data.length, 16 << 20);
});

test("a chain's stages are told one by one, and each begins anew by itself", () => {
  const step = (task, event, data) => fold(task, { event, id: null, data: { taskId: "t", ts: 1, ...data } });
  const stages = task => task.stages.map(({ name, status }) => `${name} ${status}`);
  let task = step(INITIAL, "stage", { name: "ocr", index: 1, of: 3, status: "completed", usage: { outputTokens: 2 } });
  task = step(task, "stage", { name: "sum", index: 2, of: 3, status: "queued" });
  task = step(task, "queued", { position: 2, estimatedWaitMs: null, estimatedWaitLowMs: null, estimatedWaitHighMs: null });
  assert.deepEqual([task.status, task.position, stages(task)], ["queued", 2, ["ocr completed", "sum queued"]]);
  task = step(task, "start", { attempt: 1, model: "m", queue: "q", stage: "sum", index: 2 });
  task = step(task, "chunk", { index: 0, kind: "text", delta: "lost", n: 1 });
  task = step(task, "start", { attempt: 2, model: "m", queue: "q", stage: "sum", index: 2 });
  assert.deepEqual([task.text, stages(task)], ["", ["ocr completed", "sum executing"]]);
  assert.deepEqual(task.stages[0].usage, { outputTokens: 2 });
  const done = step(task, "done", { finishReason: null, result: 1, stages: [{ name: "ocr", status: "completed" }, { name: "sum", status: "completed" }, { name: "end", status: "skipped" }] });
  assert.deepEqual([stages(done), done.failedStage], [["ocr completed", "sum completed", "end skipped"], null]);
  const failed = step(task, "error", { error: "No", code: "BAD_REQUEST", retryable: false, failedStage: "sum" });
  assert.deepEqual([failed.failedStage, stages(failed)], ["sum", ["ocr completed", "sum executing"]]);
  assert.deepEqual(step(task, "restart", {}).stages, []);
  assert.deepEqual(step(task, "start", { attempt: 1, model: "m", queue: "q" }).stages, []);
});

test("events make up what a page shows", () => {
  const at = { taskId: "t", ts: 1 };
  const step = (task, event, data) => fold(task, { event, id: null, data: { ...at, ...data } });
  let task = step(INITIAL, "queued", { position: 3, estimatedWaitMs: 900, estimatedWaitLowMs: 300, estimatedWaitHighMs: null });
  assert.deepEqual([task.status, task.position, task.estimatedWaitMs, task.estimatedWaitHighMs], ["queued", 3, 900, null]);
  task = step(task, "start", { attempt: 1, model: "m", queue: "free_stream", metadata: { a: 1 } });
  assert.deepEqual([task.status, task.position, task.model, task.metadata], ["executing", null, "m", { a: 1 }]);
  const first = step(task, "chunk", { index: 0, kind: "text", delta: "lost", n: 1 });
  task = step(first, "start", { attempt: 2, model: "m", queue: "free_stream" });
  assert.deepEqual([task.text, task.choices, task.attempt], ["", [], 2]);
  task = step(task, "chunk", { index: 1, kind: "text", delta: "second", n: 1 });
  task = step(task, "chunk", { index: 0, kind: "reasoning", delta: "let me see", n: 1 });
  task = step(task, "chunk", { index: 0, kind: "text", delta: "one ", n: 1 });
  task = step(task, "chunk", { index: 0, kind: "text", delta: "two", n: 1 });
  task = step(task, "chunk", { index: 0, kind: "tool", n: 2, delta: [
    { index: 0, id: "c", type: "function", function: { name: "weather", arguments: '{"ci' } },
    { index: 0, function: { arguments: 'ty":1}' } },
  ] });
  task = step(task, "chunk", { index: 0, kind: "extra", delta: { x: 1 }, n: 1 });
  task = step(task, "progress", { pct: 50 });
  task = step(task, "stage", { name: "ocr", index: 1, of: 2, status: "running" });
  task = step(task, "usage", { usage: { outputTokens: 3 } });
  task = step(task, "chunk", { index: 0, kind: "finish", delta: "stop", n: 1 });
  assert.equal(task.text, "one two");
  assert.deepEqual(task.progress, { pct: 50, note: null });
  assert.deepEqual(task.stage, { name: "ocr", index: 1, of: 2, status: "running" });
  assert.deepEqual(task.choices.map(choice => choice.text), ["one two", "second"]);
  assert.equal(task.choices[0].reasoning, "let me see");
  assert.equal(task.choices[0].finishReason, "stop");
  assert.deepEqual(task.choices[0].toolCalls, [{ id: "c", type: "function", function: { name: "weather", arguments: '{"city":1}' } }]);
  for (const unknown of ["gap", "bye", "debug", "of-tomorrow"]) assert.equal(step(task, unknown, {}), task);
  const done = step(task, "done", { finishReason: "length", result: { content: "one two" } });
  assert.deepEqual([done.status, done.text, done.finishReason, done.usage], ["completed", "one two", "length", { outputTokens: 3 }]);
  const failed = step(task, "error", { error: "No", code: "UPSTREAM_ERROR", retryable: true, usage: 7 });
  assert.deepEqual([failed.status, failed.error.kind, failed.error.code, failed.error.message], ["failed", "failed", "UPSTREAM_ERROR", "No"]);
  assert.deepEqual([failed.error.retryable, failed.error.taskId, failed.usage, failed.text], [true, "t", 7, "one two"]);
  const cancelled = step(task, "cancelled", { by: "admin" });
  assert.deepEqual([cancelled.status, cancelled.cancelledBy, cancelled.error.code], ["cancelled", "admin", "CANCELLED"]);
  assert.deepEqual(step(task, "restart", { reason: "r" }), { ...INITIAL, taskId: "t" });
  assert.equal(first.text, "lost"); // nothing was changed
});

test("a result that came in one piece has its text", () => {
  for (const [result, text] of [
    ["text", "text"],
    [{ content: "text" }, "text"],
    [{ choices: [{ message: { content: "text" } }] }, "text"],
    [{ choices: [{ text: "text" }] }, "text"],
    [{ choices: [{ message: { content: [{ type: "text", text: "te" }, { type: "image" }, { text: "xt" }] } }] }, "text"],
    [{ choices: [{ message: { content: null } }], content: "other" }, undefined],
    [{ data: [1] }, undefined],
    [null, undefined],
    [undefined, undefined],
  ]) assert.equal(textOf(result), text);
});

test("a broken stream is taken up behind the last event; one that fails again and again is given up", async () => {
  const start = frame("start", { taskId: "t", ts: 1 }, "1-1");
  const { asked, fetch } = answers(
    sse(`${start}event: chunk\nid: 1-2\ndata: {"ta`), // cut within an event
    new TypeError("fetch failed"),
    refused(503, { error: "Store unavailable", code: "STORE_UNAVAILABLE" }, { "Retry-After-Ms": "1" }),
    new Response("<h1>Hello</h1>", { headers: { "Content-Type": "text/html" } }),
    sse(frame("gap", { requested: "1-1" }) + frame("restart", {}, "") + frame("bye", { reason: "gap", reconnectMs: 1 })),
    sse(start + DONE),
  );
  const told = [];
  const all = await events(follow("http://g/e?token=x", { fetch, retryMs: 1, onConnection: (state, problem) => told.push([state, problem?.code ?? null]) }));
  assert.deepEqual(all.map(({ event, id }) => [event, id]), [
    ["start", "1-1"], ["gap", null], ["restart", null], ["bye", null], ["start", "1-1"], ["done", "1-9"],
  ]);
  assert.deepEqual(asked.map(({ headers }) => headers["Last-Event-ID"]), [undefined, "1-1", "1-1", "1-1", "1-1", undefined]);
  assert.deepEqual(told.filter(([state]) => state === "lost"), [
    ["lost", "NETWORK"], ["lost", "NETWORK"], ["lost", "STORE_UNAVAILABLE"], ["lost", "NO_STREAM"], ["lost", null],
  ]);
  const gone = answers(...Array(3).fill(new TypeError("fetch failed")));
  await assert.rejects(events(follow("http://g/e", { fetch: gone.fetch, maxRetries: 2, retryMs: 1 })), { kind: "network", code: "NETWORK", retryable: true });
  assert.equal(gone.asked.length, 3);
});

test("what is refused for good is thrown, with what was said; a link whose time is over is renewed once", async () => {
  const unknown = answers(refused(404, { error: "Task not found", code: "TASK_NOT_FOUND", taskId: "t" }));
  await assert.rejects(events(follow("http://g/e", unknown)), error => {
    assert.ok(error instanceof FairlaneError);
    assert.deepEqual([error.kind, error.code, error.status, error.retryable, error.taskId], ["refused", "TASK_NOT_FOUND", 404, false, "t"]);
    return error.message === "Task not found";
  });
  const over = () => refused(401, { error: "no", code: "LINK_INVALID" });
  const renewed = answers(over(), sse(DONE));
  assert.equal((await events(follow("http://g/old", { ...renewed, renew: async () => "http://g/new" }))).length, 1);
  assert.deepEqual(renewed.asked.map(({ url }) => url), ["http://g/old", "http://g/new"]);
  await assert.rejects(events(follow("http://g/old", { ...answers(over(), over()), renew: () => "http://g/new" })), { status: 401 });
  await assert.rejects(events(follow("http://g/old", { ...answers(over()), renew: () => Promise.reject(new Error("no link")) })), { status: 401 });
  assert.deepEqual(await events(follow("http://g/e", answers(new Response(null, { status: 204 })))), []);
});

test("silence ends a connection, and a signal ends everything", async () => {
  const silent = signal => {
    const body = new ReadableStream({ start: controller => signal.addEventListener("abort", () => controller.error(signal.reason)) });
    return new Response(body, { headers: { "Content-Type": "text/event-stream" } });
  };
  const { asked, fetch } = answers(silent, sse(DONE));
  const told = [];
  assert.equal((await events(follow("http://g/e", { fetch, silenceMs: 20, retryMs: 1, onConnection: (...said) => told.push(said) }))).length, 1);
  assert.equal(asked.length, 2);
  assert.equal(told.find(([state]) => state === "lost")[1].code, "TIMEOUT_HERE");

  const never = signal => new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
  await assert.rejects(events(follow("http://g/e", { ...answers(never), timeoutMs: 20, maxRetries: 0 })), { code: "TIMEOUT_HERE" });
  const why = new Error("enough");
  for (const answer of [silent, never, new TypeError("fetch failed")]) {
    const stop = new AbortController();
    const reading = events(follow("http://g/e", { ...answers(answer), signal: stop.signal }));
    setTimeout(() => stop.abort(why), 20);
    await assert.rejects(reading, error => error === why);
  }
  await assert.rejects(events(follow("http://g/e", { ...answers(never), signal: AbortSignal.abort(why) })), error => error === why);
});

test("watch tells everything and throws nothing", async () => {
  const seen = await new Promise(resolve => {
    const seen = [];
    const note = task => {
      seen.push(task);
      if (task.connection === "ended") resolve(seen);
    };
    watch("http://g/e", note, answers(sse(frame("start", { taskId: "t", ts: 1 }, "1-1") + DONE)));
  });
  assert.deepEqual(seen.map(task => [task.connection, task.status, task.text]), [
    ["connecting", "queued", ""], ["open", "queued", ""], ["open", "executing", ""], ["open", "completed", "x"], ["ended", "completed", "x"],
  ]);
  const last = await new Promise(resolve => {
    watch("http://g/e", task => task.connection === "ended" && resolve(task), answers(refused(404, { error: "Gone", code: "TASK_NOT_FOUND" })));
  });
  assert.deepEqual([last.error.message, last.error.kind], ["Gone", "refused"]);
  let calls = 0;
  const stop = watch("http://g/e", () => (calls += 1), answers(signal => new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)))));
  stop();
  await new Promise(resolve => setTimeout(resolve, 20));
  assert.equal(calls, 1);
});

test("refusals of calls are objects, in both shapes, and a page of a proxy", async () => {
  const call = answer => new Fairlane({ baseUrl: "http://g/prefix/", ...answers(answer) }).submit({ messages: [] });
  await assert.rejects(call(refused(503, { error: "Queue is full", code: "QUEUE_FULL", retryAfterMs: 1 }, { "Retry-After": "2" })), {
    kind: "refused", code: "QUEUE_FULL", message: "Queue is full", status: 503, retryable: true, retryAfterMs: 2000,
  });
  await assert.rejects(call(refused(429, { error: "x", code: "USER_QUEUE_FULL" }, { "X-Should-Retry": "false" })), { retryable: false });
  await assert.rejects(call(refused(400, { error: { message: "Bad", code: "x" } })), { code: "x", message: "Bad", retryable: false });
  await assert.rejects(call(new Response("<h1>Bad gateway</h1>", { status: 502 })), { code: "HTTP_502", retryable: true });
  await assert.rejects(call(new TypeError("fetch failed")), { kind: "network", code: "NETWORK", status: 0, cause: new TypeError("fetch failed") });
  await assert.rejects(call(new Response("{", { status: 202 })), { kind: "network" });
  assert.throws(() => new Fairlane(), TypeError);
  const { asked, fetch } = answers(refused(202, { taskId: "t", streamUrl: "/api/task/t/events?token=x" }));
  const accepted = await new Fairlane({ baseUrl: "http://g/prefix/", key: "k", fetch }).submit({ messages: [] }, { user: "u", tier: "paid" });
  assert.equal(accepted.streamUrl, "http://g/prefix/api/task/t/events?token=x");
  assert.equal(asked[0].url, "http://g/prefix/api/openai");
  assert.deepEqual([asked[0].headers.Authorization, asked[0].headers["X-Fairlane-User"], asked[0].headers["X-Fairlane-Tier"]], ["Bearer k", "u", "paid"]);
});

test("polling goes on while the gateway is away, and ends with the result or the failure", async () => {
  const poll = (...list) => new Fairlane({ baseUrl: "http://g", ...answers(...list) }).result("t", { retryMs: 1 });
  const json = body => refused(200, body);
  const waits = () => json({ taskId: "t", status: "queued", pollAfterMs: 1 });
  assert.equal(await poll(waits(), new TypeError("fetch failed"), waits(), json({ status: "completed", result: 7 })), 7);
  await assert.rejects(poll(json({ status: "failed", error: "No", code: "TOTAL_TIMEOUT", retryable: false })), { kind: "failed", code: "TOTAL_TIMEOUT", taskId: "t" });
  await assert.rejects(poll(json({ status: "cancelled" })), { kind: "cancelled", code: "CANCELLED" });
  await assert.rejects(poll(refused(404, { error: "x", code: "TASK_NOT_FOUND" })), { kind: "refused", status: 404 });
});
