// Batches with the official OpenAI SDK for Node: files up, a batch to its end, its files down.
import { setTimeout as pause } from 'node:timers/promises';
import OpenAI, { toFile } from 'openai';
import { failure, messages, run, settings } from './shared.mjs';

const client = new OpenAI(settings);
const line = (number, model) => ({
  custom_id: `id-${number}`,
  method: 'POST',
  url: '/v1/chat/completions',
  body: { model, messages },
});

async function upload(lines) {
  const text = lines.map((one) => JSON.stringify(one)).join('\n');
  return client.files.create({ file: await toFile(Buffer.from(text), 'lines.jsonl'), purpose: 'batch' });
}

async function create(lines, more = {}) {
  const file = await upload(lines);
  const settings = { endpoint: '/v1/chat/completions', completion_window: '24h', ...more };
  return client.batches.create({ input_file_id: file.id, ...settings });
}

async function ended(id) {
  for (;;) {
    const batch = await client.batches.retrieve(id);
    if (['completed', 'failed', 'expired', 'cancelled'].includes(batch.status)) return batch;
    await pause(50);
  }
}

async function records(id) {
  const text = await (await client.files.content(id)).text();
  return text.trim().split('\n').map((one) => JSON.parse(one));
}

const scenarios = {
  async whole() {
    const made = await create([line(1, 'talk'), line(2, 'refuses'), line(3, 'talk')], { metadata: { job: 'x' } });
    const batch = await ended(made.id);
    const listed = [];
    for await (const one of client.batches.list({ limit: 1 })) listed.push(one.id);
    return { made, batch, listed, output: await records(batch.output_file_id), errors: await records(batch.error_file_id) };
  },
  async bad() {
    return ended((await create([line(1, 'talk'), line(1, 'talk')])).id);
  },
  async cancelled() {
    const made = await create([line(1, 'patient')]);
    return [await client.batches.cancel(made.id), await ended(made.id)];
  },
  unknown: () => failure(() => client.batches.retrieve('batch_none')),
  wrong: () => failure(() => client.batches.create({ input_file_id: 'file-none', endpoint: '/v1/none', completion_window: '24h' })),
};

await run(scenarios);
