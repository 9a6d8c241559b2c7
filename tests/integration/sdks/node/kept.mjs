// Responses in the background, and those that are kept, with the official OpenAI SDK for Node.
import OpenAI from 'openai';
import { all, failure, run, settings } from './shared.mjs';

const client = new OpenAI(settings);
const ask = (model, more = {}) => client.responses.create({ model, input: 'hi', ...more });

async function ended(id) {
  for (;;) {
    const response = await client.responses.retrieve(id);
    if (!['queued', 'in_progress'].includes(response.status)) return response;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

const scenarios = {
  async background() {
    const asked = await ask('talk', { background: true });
    const done = await ended(asked.id);
    return { asked, done, text: done.output_text };
  },
  async resumed() {
    const whole = await all(ask('talk', { background: true, stream: true }));
    const id = whole[0].response.id;
    const rests = [];
    for (const event of whole) {
      rests.push(await all(client.responses.retrieve(id, { stream: true, starting_after: event.sequence_number })));
    }
    const again = await all(client.responses.retrieve(id, { stream: true }));
    return { whole, rests, again };
  },
  async helper() {
    const asked = await ask('talk', { background: true });
    await ended(asked.id);
    const seen = [];
    const stream = client.responses.stream({ response_id: asked.id, starting_after: 4 });
    stream.on('event', (event) => seen.push(event));
    const final = await stream.finalResponse();
    return { seen, final };
  },
  async cancelled() {
    const asked = await ask('patient', { background: true });
    const told = await client.responses.cancel(asked.id);
    return { told, again: await client.responses.cancel(asked.id), then: await client.responses.retrieve(asked.id) };
  },
  async deleted() {
    const asked = await ask('talk');
    await client.responses.delete(asked.id);
    return failure(() => client.responses.retrieve(asked.id));
  },
  async conversation() {
    const first = await ask('talk');
    const second = await ask('talk', { input: 'and?', previous_response_id: first.id });
    const items = [];
    for await (const item of client.responses.inputItems.list(second.id, { limit: 1 })) items.push(item);
    return { first, second, items };
  },
  unknown: () => failure(() => ask('talk', { previous_response_id: 'resp_unknown' })),
};

await run(scenarios);
