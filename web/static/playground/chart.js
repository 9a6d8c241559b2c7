// Who is served when: one line per task, pale while it waits, full while it runs, in a band per user. Plain SVG.

import { replace, svg } from "../common/dom.js";
import { duration } from "../common/format.js";
import { t } from "../common/i18n.js";

const LEFT = 92;
const RIGHT = 12;
const TOP = 8;
const AXIS = 26;
const GAP = 12;
const TICK_WIDTH = 56;
const STEPS_MS = [200, 500, 1000, 2000, 5000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000, 600_000];

/** Distances of the ticks of a time axis: at most seven of them, fewer where `width` px would not hold their names. */
const stepFor = (spanMs, width) => STEPS_MS.find(step => spanMs / step <= Math.min(7, width / TICK_WIDTH)) ?? STEPS_MS.at(-1);

export class Chart {
  constructor(element) {
    this._element = element;
    this._drawn = "";
  }

  /** `groups`: { name }; `tasks`: { group, sentAt, startedAt, endedAt, state }, times in ms since 1970, null = not yet. */
  draw(groups, tasks, now) {
    const width = Math.max(this._element.clientWidth, 280);
    const known = tasks.filter(task => task.sentAt !== null);
    const from = Math.min(...known.map(task => task.sentAt), now);
    const span = Math.max(now - from, 1000) * 1.02;
    const drawn = JSON.stringify([width, Math.round(span / 50), known.length, tasks.map(task => task.state)]);
    if (drawn === this._drawn) return;
    this._drawn = drawn;

    const line = tasks.length > 60 ? 5 : tasks.length > 30 ? 8 : 11;
    const x = at => LEFT + ((Math.max(at, from) - from) / span) * (width - LEFT - RIGHT);
    const parts = [];
    let y = TOP;
    for (const [index, group] of groups.entries()) {
      const mine = tasks.filter(task => task.group === index);
      parts.push(svg("text", { x: LEFT - 12, y: y + Math.max((mine.length * line) / 2, 8) + 4, class: "lane-name" }, short(group.name)));
      for (const task of mine) {
        parts.push(...bars(task, index, x, y, line, now));
        y += line;
      }
      y += GAP;
    }
    const height = y - GAP + AXIS;
    const ticks = [];
    const step = stepFor(span, width - LEFT - RIGHT);
    for (let at = 0; at <= span; at += step) {
      const place = x(from + at);
      ticks.push(svg("line", { x1: place, x2: place, y1: TOP - 4, y2: height - AXIS + 4, class: "tick" }));
      ticks.push(svg("text", { x: place, y: height - 8, class: "tick-name" }, at ? duration(at) : "0"));
    }
    replace(
      this._element,
      svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": t("burst.chart.label") }, ticks, parts),
    );
  }
}

function bars(task, index, x, y, line, now) {
  if (task.sentAt === null) return [];
  const end = task.endedAt ?? now;
  const begun = task.startedAt ?? end;
  const height = line - 2;
  const box = (from, to, name) =>
    svg("rect", { x: x(from), y, width: Math.max(x(to) - x(from), 1), height, rx: Math.min(2, height / 2), class: `${name} series-${index % 6}` });
  const parts = [box(task.sentAt, begun, "waited")];
  if (task.startedAt !== null) parts.push(box(task.startedAt, end, task.state === "failed" || task.state === "cancelled" ? "stopped" : "ran"));
  return parts;
}

const short = name => ([...name].length > 11 ? [...name].slice(0, 10).join("") + "…" : name);
