// One scenario with Anthropic's official SDK for Node: node anthropic.mjs <scenario> <base URL> <client options as JSON>.
// Prints what the caller saw as one line of JSON.
import Anthropic from '@anthropic-ai/sdk';

const [scenario, baseURL, options] = process.argv.slice(2);
const statuses = [];
const messages = [{ role: 'user', content: 'hi' }];
const client = new Anthropic({
  baseURL,
  apiKey: 'none',
  maxRetries: 0,
  timeout: 30_000,
  fetch: async (url, init) => {
    const response = await fetch(url, init);
    statuses.push(response.status);
    process.stderr.write(`status ${response.status}\n`);
    return response;
  },
  ...JSON.parse(options ?? '{}'),
});

const asked = (model, more = {}) => ({ model, max_tokens: 64, messages, ...more });
const create = (model, more = {}) => client.messages.create(asked(model, more));

async function all(stream) {
  const events = [];
  for await (const event of await stream) events.push(event);
  return events;
}

// Runs `work`, which has to fail, and tells how; `before` is what it had shown until then.
async function failure(work) {
  const before = [];
  try {
    await work(before);
  } catch (error) {
    const { status = null, type = null, message, requestID = null, error: body = null } = error;
    return { name: error.constructor.name, status, type, message, requestID, body, statuses, before };
  }
  throw new Error('nothing was raised');
}

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

console.log(JSON.stringify(await scenarios[scenario]()));
