// Files from the gateway.

import { send } from "./api.js";
import { h } from "./dom.js";

const LONGEST_MS = 600_000;
const KEPT_MS = 60_000; // the browser has begun to save by then

/** Let the reader keep what a call answers, under this name. Throws Problem. */
export async function download(path, name) {
  const response = await send(path, { signal: AbortSignal.timeout(LONGEST_MS) });
  keep(await response.blob(), name);
}

/** Let the reader keep a blob as a file. */
export function keep(blob, name) {
  const url = URL.createObjectURL(blob);
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), KEPT_MS);
}
