// What openai-node makes of a webhook: node webhooks.mjs verify '' '{"secret": …, "body": …, "headers": …}'.
import OpenAI from 'openai';

const { secret, body, headers } = JSON.parse(process.argv[4]);
const client = new OpenAI({ apiKey: 'none', webhookSecret: secret });
const event = await client.webhooks.unwrap(body, headers);
let refused = null;
try {
  await client.webhooks.unwrap(`${body} `, headers);
} catch (error) {
  refused = error.constructor.name;
}
console.log(JSON.stringify({ event, refused }));
