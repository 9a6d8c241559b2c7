// Files from the gateway.

import { call } from "./api.js";
import { h } from "./dom.js";

const LONGEST_MS = 600_000;
const KEPT_MS = 60_000; // the browser has begun to save by then

/** Let the reader keep what a call answers, under this name. Throws FairlaneError. */
export async function download(path, name) {
  keep(await call(path, { timeoutMs: LONGEST_MS, read: response => response.blob() }), name);
}

/** Let the reader keep a blob as a file. */
export function keep(blob, name) {
  const url = URL.createObjectURL(blob);
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), KEPT_MS);
}
