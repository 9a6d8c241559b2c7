// Plays one scenario after the other, as lines of standard input ask for them: ["openai.mjs", scenario, base URL, options].
// To load an SDK takes half a second of a processor; here each is loaded once. What is ours is loaded anew for each scenario.
import { copyFileSync, mkdirSync, rmSync } from 'node:fs';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { pathToFileURL } from 'node:url';

const here = import.meta.dirname;
let number = 0;

async function play(client, ...asked) {
  const folder = path.join(here, `played-${process.pid}-${++number}`);
  mkdirSync(folder);
  for (const file of [client, 'shared.mjs']) copyFileSync(path.join(here, file), path.join(folder, file));
  process.argv.splice(2, Infinity, ...asked);
  try {
    await import(pathToFileURL(path.join(folder, client)));
  } catch (error) {
    console.log(JSON.stringify({ broke: String(error?.stack ?? error) }));
  }
  rmSync(folder, { recursive: true });
}

for await (const line of createInterface({ input: process.stdin })) await play(...JSON.parse(line));
process.exit();
