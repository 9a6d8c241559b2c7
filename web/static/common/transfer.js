// Files to the gateway and from it.

import { Problem, getKey, problemFrom, send } from "./api.js";
import { h } from "./dom.js";

const KEPT_MS = 60_000; // the browser has begun to save by then

/**
 * Send a form with a file in it; the JSON of the answer. `onProgress(sent, total)` is told in bytes while it goes, `signal` ends it.
 * Throws Problem, and AbortError when `signal` says so. (fetch does not tell how far it is.)
 */
export function upload(path, form, { headers = {}, onProgress = () => {}, signal } = {}) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    const stopped = () => reject(new DOMException("The upload was stopped", "AbortError"));
    const stop = () => request.abort();
    if (signal?.aborted) {
      stopped();
      return;
    }
    signal?.addEventListener("abort", stop);
    request.open("POST", path);
    request.setRequestHeader("Accept", "application/json");
    if (getKey()) request.setRequestHeader("Authorization", `Bearer ${getKey()}`);
    for (const [name, value] of Object.entries(headers)) request.setRequestHeader(name, value);
    request.upload.addEventListener("progress", event => onProgress(event.loaded, event.total));
    request.addEventListener("load", () => {
      const body = jsonOf(request.responseText);
      if (request.status >= 200 && request.status < 300 && body !== null) resolve(body);
      else reject(problemFrom(request.status, name => request.getResponseHeader(name), body, true));
    });
    request.addEventListener("error", () => reject(new Problem(0, "NETWORK", "The gateway cannot be reached", { changes: true })));
    request.addEventListener("abort", stopped);
    request.addEventListener("loadend", () => signal?.removeEventListener("abort", stop));
    request.send(form);
  });
}

function jsonOf(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** Let the reader keep what a call answers, under this name. Throws Problem. */
export async function download(path, name, { headers = {} } = {}) {
  const response = await send(path, { headers, timeoutMs: 60_000 });
  keep(await response.blob(), name);
}

/** Let the reader keep a blob as a file. */
export function keep(blob, name) {
  const url = URL.createObjectURL(blob);
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), KEPT_MS);
}

/** The first lines of what a call answers, of not more characters than that; the rest is not read. `whole`: whether these are all. Throws Problem. */
export async function firstLines(path, { headers = {}, lines: most, characters, signal } = {}) {
  const response = await send(path, { headers, signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  let whole = false;
  try {
    while (text.length < characters && text.split("\n").length <= most) {
      const { done, value } = await reader.read();
      whole = done;
      if (done) break;
      text += value;
    }
  } finally {
    reader.cancel().catch(() => {}); // what is left is not wanted
  }
  const lines = text.split("\n");
  if (!whole) lines.pop(); // it need not be whole
  const found = lines.filter(line => line.trim());
  return { lines: found.slice(0, most), whole: whole && found.length <= most };
}
