// Reads a task's events with the browser's own EventSource, which comes back by itself after a lost connection.
export function follow(url, show, clear) {
  const source = new EventSource(url);
  // An `error` event without data is the browser's own: the connection was lost, and it comes back.
  const on = (name, act) => source.addEventListener(name, event => event.data && act(JSON.parse(event.data)));
  on("start", clear); // a worker begins; one that begins once more writes everything anew
  on("chunk", ({ kind, delta }) => kind === "text" && show(delta)); // other kinds: reasoning, tool, finish …
  on("restart", clear); // rare: the store has lost what you saw
  on("error", ({ error }) => show(`Failed: ${error}`));
  for (const end of ["done", "error", "cancelled"]) on(end, () => source.close());
}
