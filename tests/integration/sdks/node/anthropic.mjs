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
  unknown_model: () => failure(() => create('nobody-has-this')),
  bad_request: () => failure(() => create('talk', { container: 'c' })),
  breaks: () =>
    failure(async (before) => {
      const stream = client.messages.stream(asked('breaks'));
      stream.on('text', (delta) => before.push(delta));
      await stream.finalMessage();
    }),
  waits: () => helped('talk'),
  waits_raw: () => all(create('talk', { stream: true })),
};

await run(scenarios);
