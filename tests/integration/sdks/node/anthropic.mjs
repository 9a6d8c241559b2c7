// Scenarios with Anthropic's official SDK for Node.
import Anthropic from '@anthropic-ai/sdk';
import { all, failure, messages, run, settings } from './shared.mjs';

const client = new Anthropic(settings);
const asked = (model, more = {}) => ({ model, max_tokens: 64, messages, ...more });
const create = (model, more = {}) => client.messages.create(asked(model, more));

async function helped(model, more) {
  const texts = [];
  const stream = client.messages.stream(asked(model, more));
  stream.on('text', (delta) => texts.push(delta));
  return { final: await stream.finalMessage(), texts };
}

const tools = ['weather', 'clock'].map((name) => ({ name, input_schema: { type: 'object' } }));

const scenarios = {
  create: () => create('talk'),
  stream: () => all(create('talk', { stream: true })),
  helper: () => helped('talk'),
  async thinker() {
    return { whole: await create('thinker'), final: (await helped('thinker')).final };
  },
  async tools() {
    return { whole: await create('tools', { tools }), final: (await helped('tools', { tools })).final };
  },
  async models() {
    const names = [];
    for await (const model of client.models.list({ limit: 3 })) names.push(model.id);
    return { names, one: await client.models.retrieve('talk') };
  },
  count: () => client.messages.countTokens({ model: 'talk', messages }),
  beta: () => client.beta.messages.create({ ...asked('talk'), betas: ['interleaved-thinking-2025-05-14'] }),
  async ids() {
    const { data, response, request_id } = await create('talk').withResponse();
    return { request_id, inBody: data._request_id, task: response.headers.get('x-task-id') };
  },
  unauthorized: () => failure(() => create('talk')),
  unknown_model: () => failure(() => create('nobody-has-this')),
  bad_request: () => failure(() => create('talk', { container: 'c' })),
  queue_full: () => failure(() => create('talk')),
  timeout: () => failure(() => create('patient')),
  breaks: () =>
    failure(async (before) => {
      const stream = client.messages.stream(asked('breaks'));
      stream.on('text', (delta) => before.push(delta));
      await stream.finalMessage();
    }),
  waits: () => helped('talk'),
  waits_raw: () => all(create('talk', { stream: true })),
  async leave() {
    for await (const event of await create('endless', { stream: true })) {
      if (event.type === 'content_block_delta') return { text: event.delta.text };
    }
  },
  async abort() {
    const stream = client.messages.stream(asked('endless'));
    let text = '';
    stream.on('text', (delta) => {
      text += delta;
      stream.abort();
    });
    await stream.done().catch(() => {});
    return { text };
  },
};

await run(scenarios);
