// What the scenarios of both clients share: node <client>.mjs <scenario> <base URL> <client options as JSON>.
const [scenario, baseURL, options] = process.argv.slice(2);
export const statuses = [];
export const messages = [{ role: 'user', content: 'hi' }];
export const settings = {
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
};

export async function all(stream) {
  const items = [];
  for await (const item of await stream) items.push(item);
  return items;
}

// Runs `work`, which has to fail, and tells how; `before` is what it had shown until then.
export async function failure(work) {
  const before = [];
  try {
    await work(before);
  } catch (error) {
    const { status = null, code = null, type = null, message, requestID = null, error: body = null } = error;
    return { name: error.constructor.name, status, code, type, message, requestID, body, statuses, before };
  }
  throw new Error('nothing was raised');
}

// Prints what the caller saw as one line of JSON.
export async function run(scenarios) {
  console.log(JSON.stringify(await scenarios[scenario]()));
}
