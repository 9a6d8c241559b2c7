// The client against a gateway (GATEWAY), and against the same behind a network that cuts its connections (CUT). KEY is a caller's.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Fairlane, INITIAL, fold, follow, watch } from "fairlane-client";

const { GATEWAY: baseUrl, CUT: cutUrl, KEY: key, OTHER_KEY: otherKey } = process.env;
const gateway = new Fairlane({ baseUrl, key });
const messages = [{ role: "user", content: "hi" }];
const events = async reading => {
  const all = [];
  for await (const event of reading) all.push(event);
  return all;
};
const folded = all => all.reduce(fold, INITIAL);
const ended = (url, options) => new Promise(resolve => watch(url, task => task.connection === "ended" && resolve(task), options));
/** The first of these events that `wanted` says yes to; the rest is read on, so that the connection stays. */
async function first(reading, wanted) {
  for (;;) {
    const { done, value } = await reading.next();
    assert.ok(!done, "the stream ended before");
    if (wanted(value)) return value;
  }
}

test("every event comes once and in order through a network that cuts every connection", async () => {
  const { taskId, streamUrl } = await gateway.submit({ model: "story", messages });
  let lost = 0;
  const onConnection = state => (lost += state === "lost");
  const link = streamUrl.replace(baseUrl, cutUrl);
  const [cut, whole] = await Promise.all([events(follow(link, { onConnection, retryMs: 1 })), events(gateway.follow(taskId))]);
  const logged = all => all.filter(({ id }) => id !== null);
  assert.deepEqual(logged(cut), logged(whole));
  assert.ok(lost >= 3, `${lost} cuts`);
  assert.equal(whole.at(-1).event, "done");
  assert.ok(whole.filter(({ event }) => event === "chunk").length > 20);
  const task = folded(cut);
  assert.equal(task.text, whole.at(-1).data.result.content);
  assert.equal(task.choices[0].text, task.text);
  assert.deepEqual(task.usage, { inputTokens: 5, outputTokens: 60 });
  assert.deepEqual(await events(gateway.follow(taskId, { lastEventId: whole.at(-1).id })), []);
  assert.deepEqual(await events(gateway.follow(taskId, { lastEventId: whole.at(-3).id })), whole.slice(-2));
  const polled = await gateway.poll(taskId);
  assert.deepEqual([polled.status, polled.result.content], ["completed", task.text]);
  assert.equal((await gateway.result(taskId)).content, task.text);
});

test("a task without stream has its text at the end", async () => {
  const { streamUrl } = await gateway.submit({ model: "whole", messages, stream: false });
  const task = await ended(streamUrl);
  assert.deepEqual([task.status, task.text, task.choices], ["completed", "In one piece", []]);
  assert.equal(task.result.choices[0].message.content, "In one piece");
});

test("the same key and body are the same task, and another body is refused", async () => {
  const idempotencyKey = `key-${Date.now()}`;
  const body = { model: "whole", messages, stream: false };
  const one = await gateway.submit(body, { idempotencyKey });
  const again = await gateway.submit(body, { idempotencyKey });
  assert.deepEqual([again.taskId, again.replay, again.idemKey, one.replay], [one.taskId, true, idempotencyKey, undefined]);
  await assert.rejects(gateway.submit({ ...body, n: 1 }, { idempotencyKey }), { kind: "refused", code: "IDEMPOTENCY_KEY_REUSED", retryable: false });
  assert.equal((await ended(again.streamUrl)).text, "In one piece");
});

test("a task of another type, with metadata, for somebody", async () => {
  const { streamUrl } = await gateway.submitTask({ type: "resize", model: "resize", payload: { width: 3 }, metadata: { page: 7 } });
  const task = await ended(streamUrl);
  assert.deepEqual([task.result, task.metadata], [{ width: 6 }, { page: 7 }]);
  assert.deepEqual(task.stage, { name: "scale", index: 1, of: 2, status: "running" });
});

test("progress is told", async () => {
  const { taskId } = await gateway.submit({ model: "steps", messages });
  const reading = gateway.follow(taskId);
  const told = await first(reading, ({ event }) => event === "progress");
  assert.deepEqual(fold(INITIAL, told).progress, { pct: 50, note: "half" });
  await gateway.cancel(taskId);
  await first(reading, ({ event }) => event === "cancelled");
});

test("one waits, one runs, both are cancelled", async () => {
  const running = await gateway.submit({ model: "endless", messages });
  const reading = gateway.follow(running.taskId);
  await first(reading, ({ event }) => event === "chunk");
  const waiting = await gateway.submit({ model: "endless", messages });
  const place = gateway.follow(waiting.taskId);
  assert.equal((await first(place, ({ event }) => event === "queued")).data.position, 1);
  const polled = await gateway.poll(waiting.taskId);
  assert.deepEqual([polled.status, polled.position], ["queued", 1]);
  assert.ok(polled.pollAfterMs >= 1000);
  assert.equal((await gateway.poll(running.taskId)).status, "executing");
  for (const [{ taskId }, events] of [[waiting, place], [running, reading]]) {
    assert.deepEqual(await gateway.cancel(taskId), { taskId, status: "cancelled" });
    const { data } = await first(events, ({ event }) => event === "cancelled");
    assert.equal(data.by, "client");
    await assert.rejects(gateway.result(taskId), { kind: "cancelled", code: "CANCELLED", taskId });
  }
});

test("who stops reading ends nothing", async () => {
  const { taskId, streamUrl } = await gateway.submit({ model: "story", messages });
  for await (const { event } of gateway.follow(taskId)) if (event === "start") break;
  const why = new Error("enough");
  const stop = new AbortController();
  await assert.rejects(async () => {
    for await (const { event } of gateway.follow(taskId, { signal: stop.signal })) if (event === "chunk") stop.abort(why);
  }, error => error === why);
  assert.equal((await ended(streamUrl)).status, "completed");
});

test("failures and refusals are objects", async () => {
  const { taskId, streamUrl } = await gateway.submit({ model: "fails", messages });
  const { status, error } = await ended(streamUrl);
  assert.equal(status, "failed");
  const said = { kind: "failed", code: "UPSTREAM_AUTH", message: "The key is wrong", retryable: false, taskId };
  for (const [name, value] of Object.entries(said)) assert.equal(error[name], value);
  await assert.rejects(gateway.result(taskId), said);
  await assert.rejects(gateway.submit({ model: "story", messages, priority: 9 }), { kind: "refused", code: "INVALID_REQUEST", status: 400, retryable: false });
  await assert.rejects(gateway.submit({ model: "nobody", messages }), refusal => {
    assert.deepEqual([refusal.kind, refusal.code, refusal.status], ["refused", "NO_WORKER", 503]);
    return refusal.retryAfterMs > 0;
  });
  const other = new Fairlane({ baseUrl, key: otherKey });
  await assert.rejects(other.poll(taskId), { kind: "refused", code: "TASK_NOT_FOUND", status: 404 });
  await assert.rejects(events(other.follow(taskId)), { kind: "refused", code: "TASK_NOT_FOUND", status: 404 });
  await assert.rejects(new Fairlane({ baseUrl, key: "wrong" }).submit({ messages }), { code: "UNAUTHORIZED", status: 401 });
  const forged = `${streamUrl.slice(0, -6)}AAAAAA`;
  await assert.rejects(events(follow(forged)), { code: "LINK_INVALID", status: 401 });
  assert.equal((await ended(forged, { renew: () => streamUrl })).status, "failed");
});
