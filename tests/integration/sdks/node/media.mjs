// Scenarios with the official OpenAI SDK for Node: audio, images, moderations.
import { createReadStream, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import OpenAI, { toFile } from 'openai';
import { all, failure, run, settings } from './shared.mjs';

const client = new OpenAI(settings);
const sound = Buffer.from(Array.from({ length: 70_000 }, (_, at) => at % 251));
const path = join(tmpdir(), `fairlane-sound-${process.pid}.wav`);
writeFileSync(path, sound);
const file = () => createReadStream(path);
const hear = (model, more = {}) => client.audio.transcriptions.create({ model, file: file(), ...more });
const speak = (model, more = {}) => client.audio.speech.create({ model, voice: 'alloy', input: 'two words', ...more });
const hex = async (answer) => Buffer.from(await (await answer).arrayBuffer()).toString('hex');

const scenarios = {
  async transcriptions() {
    const [json, verbose, text, srt, vtt] = await Promise.all([
      hear('sim'),
      hear('sim', { response_format: 'verbose_json', timestamp_granularities: ['segment'] }),
      hear('sim', { response_format: 'text' }),
      hear('sim', { response_format: 'srt' }),
      hear('sim', { response_format: 'vtt' }),
    ]);
    return { json, verbose, text, srt, vtt };
  },
  heard: () => hear('ear', { language: 'de', temperature: 0.25, timestamp_granularities: ['word', 'segment'] }),
  stream: () => all(hear('ear', { stream: true })),
  translation: () => client.audio.translations.create({ model: 'sim', file: file() }),
  async speech() {
    return { pieces: await hex(speak('pieces')), wav: await hex(speak('sim', { response_format: 'wav' })) };
  },
  async pieces() {
    const answer = await speak('slow');
    let first = '';
    for await (const piece of answer.body) {
      first = Buffer.from(piece).toString();
      break;
    }
    return { first, type: answer.headers.get('content-type') };
  },
  async images() {
    const image = await toFile(Buffer.from('image'), 'a.png', { type: 'image/png' });
    return {
      made: await client.images.generate({ model: 'sim', prompt: 'a lane', n: 2, size: '16x16' }),
      edited: await client.images.edit({ model: 'sim', prompt: 'wider', image: [image, image], mask: image }),
      varied: await client.images.createVariation({ model: 'sim', image }),
      events: await all(client.images.generate({ model: 'painter', prompt: 'x', stream: true, partial_images: 1 })),
    };
  },
  moderation: () => client.moderations.create({ input: ['kind', 'this is vile'] }),
  async far() {
    const image = await toFile(Buffer.from('image'), 'a.png', { type: 'image/png' });
    return {
      heard: await hear('far', { temperature: 0.5 }),
      events: await all(hear('far', { stream: true })),
      spoken: await hex(speak('far')),
      edited: await client.images.edit({ model: 'far', prompt: 'wider', image: [image, image] }),
    };
  },
  none: () => failure(() => speak('chat-only')),
  mute: () => failure(() => speak('mute')),
};

await run(scenarios);
