// What a webhook may tell of, and how one stands. Pure.

export const ANY = "*";

/** Events by what they are about. */
export const EVENTS = {
  task: ["task.completed", "task.failed", "task.cancelled"],
  response: ["response.completed", "response.failed", "response.incomplete", "response.cancelled"],
  batch: ["batch.completed", "batch.failed", "batch.expired", "batch.cancelled"],
};

/** How a webhook stands: it tells, it fails, or it is off. */
export const standing = hook => (!hook.enabled ? "off" : hook.failing ? "failing" : "on");

/** The URL without its query, which may hold a secret, and not longer than a person reads. */
export function nameOf(url, most = 80) {
  const [path] = url.split("?");
  return path.length > most ? `${path.slice(0, most - 1)}…` : path;
}
