// Scenarios with Vercel's AI SDK: `openai(model)`, which speaks the Responses API.
import { createOpenAI } from '@ai-sdk/openai';
import { generateText, jsonSchema, stepCountIs, streamText, tool } from 'ai';
import { run, settings } from './shared.mjs';

globalThis.AI_SDK_LOG_WARNINGS = false;
const openai = createOpenAI({ baseURL: settings.baseURL, apiKey: 'none' });
const asked = (model, more = {}) => ({ model: openai(model), prompt: 'hi', maxRetries: 0, ...more });
const weather = tool({
  description: 'The weather in a city.',
  inputSchema: jsonSchema({ type: 'object', properties: { city: { type: 'string' } }, required: ['city'], additionalProperties: false }),
  execute: async ({ city }) => `fair in ${city}`,
});

async function streamed(more) {
  const result = streamText({ onError: () => {}, ...more });
  const parts = [];
  for await (const part of result.fullStream) parts.push(part);
  const joined = (type) => parts.filter((part) => part.type === type).map((part) => part.text).join('');
  const errors = parts.filter((part) => part.type === 'error').map((part) => part.error?.message ?? String(part.error?.error?.message ?? part.error));
  return { text: joined('text-delta'), reasoning: joined('reasoning-delta'), kinds: parts.map((part) => part.type), finish: parts.at(-1).finishReason, errors };
}

const scenarios = {
  async text() {
    const { text, usage, finishReason, response } = await generateText(asked('talk', { system: 'Be brief.' }));
    return { text, usage, finishReason, id: response.id, streamed: await streamed(asked('talk')) };
  },
  async tools() {
    const more = { tools: { weather }, stopWhen: stepCountIs(3) };
    const unkept = { ...more, providerOptions: { openai: { store: false } } };
    const { text, steps } = await generateText(asked('tools-once', more));
    const others = [await streamed(asked('tools-once', more)), await streamed(asked('tools-once', unkept))];
    return { text, steps: steps.map((step) => step.finishReason), others };
  },
};

await run(scenarios);
