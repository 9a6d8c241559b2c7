// Numbers, times and sizes in the reader's language.

import { language } from "./i18n.js";

const made = new Map();

function formatter(options) {
  const name = language() + JSON.stringify(options);
  if (!made.has(name)) made.set(name, new Intl.NumberFormat(language(), options));
  return made.get(name);
}

/** 12,345.6 */
export function number(value, digits = 0) {
  if (value === null || value === undefined || !Number.isFinite(Number(value))) return "–";
  return formatter({ maximumFractionDigits: digits }).format(value);
}

/** 12.3K: where there is little room. */
export const compact = value => (value < 10_000 ? number(value, 2) : formatter({ notation: "compact", maximumFractionDigits: 1 }).format(value));

/** Credits: small ones to the last digit, others as money. */
export const credits = value => number(value, Math.abs(value) < 1 ? 6 : 2);

/** The same with all digits. `sign` as of Intl.NumberFormat. */
export const exactCredits = (value, sign = "auto") => formatter({ maximumFractionDigits: 6, signDisplay: sign }).format(value);

function unit(value, name, digits = 0) {
  const options = { style: "unit", unit: name, unitDisplay: "narrow", maximumFractionDigits: digits };
  return formatter(digits ? { ...options, minimumFractionDigits: digits } : options).format(value);
}

/** Milliseconds as a person says them: 340ms, 3.2s, 45s, 2m 5s, 1h 12m, 3d. */
export function duration(ms) {
  if (ms === null || ms === undefined || !Number.isFinite(Number(ms))) return "–";
  const value = Math.max(0, Number(ms));
  if (value < 999.5) return unit(Math.round(value), "millisecond");
  if (value < 9950) return unit(value / 1000, "second", 1);
  const seconds = Math.round(value / 1000);
  if (seconds < 60) return unit(seconds, "second");
  const [minutes, hours] = [Math.floor(seconds / 60), Math.floor(seconds / 3600)];
  if (minutes < 60) return seconds % 60 ? `${unit(minutes, "minute")} ${unit(seconds % 60, "second")}` : unit(minutes, "minute");
  if (hours < 48) return minutes % 60 ? `${unit(hours, "hour")} ${unit(minutes % 60, "minute")}` : unit(hours, "hour");
  return unit(Math.round(hours / 24), "day");
}

/** The same without a zero behind the point: 10s, 3s, 1m. */
export const wholeUnits = ms => duration(ms).replace(/[.,]0(?=\D)/, "");

/** 63 % */
export const percent = (share, digits = 0) =>
  formatter({ style: "percent", maximumFractionDigits: digits }).format(Number(share) || 0);

/** The time of day of a time in ms since 1970. */
export const clock = ms => new Date(ms).toLocaleTimeString(language(), { hourCycle: "h23" });

/** The same without seconds. */
export const hourMinute = ms => new Date(ms).toLocaleTimeString(language(), { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });

/** The day of a time: 23 Nov. */
export const dayMonth = ms => new Date(ms).toLocaleDateString(language(), { day: "numeric", month: "short" });

/** The reader's time zone, of all times shown: UTC, GMT+2, CET. */
export const timeZone = () =>
  new Intl.DateTimeFormat(language(), { timeZoneName: "short" }).formatToParts().find(({ type }) => type === "timeZoneName").value;

/** Date and time of day. */
export const dateTime = ms => new Date(ms).toLocaleString(language(), { dateStyle: "medium", timeStyle: "medium", hourCycle: "h23" });

/** A time in short: today the time of day, otherwise the day and the minute. */
export const when = (ms, now = Date.now()) => (dayMonth(ms) === dayMonth(now) ? clock(ms) : `${dayMonth(ms)} ${hourMinute(ms)}`);

/** A time in ms as a field `datetime-local` has it: in the reader's zone, to the minute; "" for none. */
export function fieldTime(ms) {
  const time = new Date(Number(ms));
  return ms && !Number.isNaN(time.getTime()) ? new Date(time - time.getTimezoneOffset() * 60_000).toISOString().slice(0, 16) : "";
}

/** 180B, 1.5MB */
export function bytes(value) {
  const names = ["byte", "kilobyte", "megabyte", "gigabyte"];
  const step = value > 0 ? Math.min(Math.floor(Math.log10(value) / 3), names.length - 1) : 0;
  return formatter({ style: "unit", unit: names[step], unitDisplay: "narrow", maximumFractionDigits: step ? 1 : 0 }).format(
    value / 1000 ** step,
  );
}
