// How long so many users wait in front of so many slots. Pure.

/**
 * A closed network of `users` who ask again only when they have been answered, in front of `slots` (the machine repair model,
 * M/M/c//N: L. Kleinrock, Queueing Systems, volume 1, 1975, section 3.8; A. O. Allen, Probability, Statistics and Queueing Theory).
 * Answers take `seconds` in the mean and vary as an exponential distribution does; between an answer and the next question a user
 * pauses for so long that one who never waits asks `perHour` times an hour.
 *
 * With k users in the system, questions come at (users - k) / pause and answers leave at min(k, slots) / seconds; that balance gives
 * the probability of each k, up to a factor. Little's law makes the wait of them.
 *
 * Returns { wait, waits, use, perSecond, asked }: the mean wait in seconds; the part of the time that somebody waits; the part of the
 * slots that is used; answers a second; and how often a user really asks an hour.
 */
export function size({ slots, seconds, users, perHour }) {
  const pause = Math.max(3600 / perHour - seconds, 0);
  let weight = pause === 0 ? 0 : 1; // of k users in the system, against the others
  let sum = weight;
  let busy = 0;
  let waiting = 0;
  let somebody = 0;
  for (let k = 1; k <= users; k++) {
    weight = pause === 0 ? Number(k === users) : (weight * (users - k + 1) * seconds) / (pause * Math.min(k, slots));
    sum += weight;
    busy += weight * Math.min(k, slots);
    waiting += weight * Math.max(k - slots, 0);
    if (k > slots) somebody += weight;
    if (sum > 1e200) [weight, sum, busy, waiting, somebody] = [weight, sum, busy, waiting, somebody].map(value => value / 1e200);
  }
  const perSecond = busy / sum / seconds;
  return {
    wait: waiting / sum / perSecond,
    waits: somebody / sum,
    use: busy / sum / slots,
    perSecond,
    asked: (perSecond * 3600) / users,
  };
}
