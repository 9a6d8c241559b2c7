// Scenarios with the official OpenAI SDK for Node.
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import OpenAI, { toFile } from 'openai';
import { all, failure, messages, run, settings, statuses } from './shared.mjs';

const client = new OpenAI(settings);
const chat = (model, more = {}) => client.chat.completions.create({ model, messages, ...more });
const respond = (model, more = {}) => client.responses.create({ model, input: 'hi', ...more });

const scenarios = {
  create: () => chat('talk', { user: 'somebody', fun_level: { high: 11 } }),
  whole: () => chat('whole'),
  async stream() {
    const chunks = await all(chat('talk', { stream: true }));
    return { chunks, withUsage: await all(chat('talk', { stream: true, stream_options: { include_usage: true } })) };
  },
  async helper() {
    const contents = [];
    const runner = client.chat.completions.stream({ model: 'talk', messages });
    runner.on('content', (delta) => contents.push(delta));
    return { contents, final: await runner.finalChatCompletion() };
  },
  async tools() {
    const runner = client.chat.completions.stream({ model: 'tools', messages });
    return {
      whole: await chat('whole-tools'),
      joined: await chat('tools'),
      deltas: await all(chat('tools', { stream: true })),
      final: await runner.finalChatCompletion(),
    };
  },
  async responses() {
    const whole = await respond('talk', { instructions: 'Be brief.' });
    const runner = client.responses.stream({ model: 'talk', input: 'hi' });
    const deltas = [];
    runner.on('response.output_text.delta', (event) => deltas.push(event.delta));
    return { whole, text: whole.output_text, events: await all(respond('talk', { stream: true })), deltas, final: (await runner.finalResponse()).output_text };
  },
  async embeddings() {
    const create = (more) => client.embeddings.create({ model: 'vectors', input: ['a', 'b'], ...more });
    return { plain: await create(), float: await create({ encoding_format: 'float' }) };
  },
  async files() {
    const line = '{"custom_id": "1"}\n';
    const file = path.join(fs.mkdtempSync(path.join(os.tmpdir(), 'files-')), 'stream.jsonl');
    fs.writeFileSync(file, line);
    const { files } = client;
    const made = [
      await files.create({ file: fs.createReadStream(file), purpose: 'batch' }),
      await files.create({ file: await toFile(Buffer.from(line), 'made.jsonl'), purpose: 'batch' }),
      await files.create({
        file: new File([line], 'blob.bin'),
        purpose: 'user_data',
        expires_after: { anchor: 'created_at', seconds: 3600 },
      }),
    ];
    const page = [];
    for await (const one of files.list({ limit: 2 })) page.push(one.id);
    return {
      made,
      page,
      retrieved: await files.retrieve(made[0].id),
      waited: await files.waitForProcessing(made[0].id),
      content: await (await files.content(made[0].id)).text(),
      deleted: await files.delete(made[0].id),
      missing: await failure(() => files.retrieve(made[0].id)),
    };
  },
  unknown_model: () => failure(() => chat('nobody-has-this')),
  bad_request: () => failure(() => client.chat.completions.create({ model: 'talk', messages: 'hi' })),
  too_long: () => failure(() => chat('refuses')),
  too_long_stream: () => failure(async () => all(chat('refuses', { stream: true }))),
  queue_full: () => failure(() => chat('talk')),
  breaks: () =>
    failure(async (before) => {
      for await (const chunk of await chat('breaks', { stream: true })) before.push(chunk.choices[0]?.delta?.content ?? '');
    }),
  breaks_helper: () =>
    failure(async (before) => {
      const runner = client.chat.completions.stream({ model: 'breaks', messages });
      runner.on('content', (delta) => before.push(delta));
      await runner.finalChatCompletion();
    }),
  async retried() {
    const completion = await chat('talk');
    return { statuses, content: completion.choices[0].message.content };
  },
  async waits() {
    const runner = client.chat.completions.stream({ model: 'talk', messages });
    let without = 0;
    runner.on('chunk', (chunk) => (without += chunk.choices.length === 0));
    const final = await runner.finalChatCompletion();
    return { without, content: final.choices[0].message.content };
  },
  async waits_raw() {
    return all(chat('talk', { stream: true }));
  },
  async leave() {
    for await (const chunk of await chat('endless', { stream: true })) {
      if (chunk.choices[0]?.delta?.content) return { content: chunk.choices[0].delta.content };
    }
  },
  async abort() {
    const stream = await chat('endless', { stream: true });
    let content = '';
    for await (const chunk of stream) {
      content += chunk.choices[0]?.delta?.content ?? '';
      if (content) stream.controller.abort();
    }
    return { content };
  },
};

await run(scenarios);
