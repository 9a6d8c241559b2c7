// The plots of a range of time, by uPlot: waiting tasks, throughput, tokens, and latency percentiles.

import { h, replace, setText } from "../common/dom.js";
import { clock, compact, dayMonth, duration, hourMinute, number, timeZone, wholeUnits } from "../common/format.js";
import { t } from "../common/i18n.js";

const HEIGHT = 190;
const LEAST_MS = 600_000; // a gateway that is new shows ten minutes, not an empty hour with a line at its edge
const LEAST_BUCKETS = 6;
const [SECOND_MS, MINUTE_MS, TEN_MINUTES_MS, HOUR_MS, DAY_MS] = [1000, 60_000, 600_000, 3_600_000, 86_400_000];
const STEPS_MS = [1, 10, 100, 1000, 10_000, 60_000, 600_000, 3_600_000, 36_000_000];

/** What a CSS colour of the page comes to: a canvas knows no variables. */
function resolve(variable) {
  const probe = h("span");
  probe.style.color = `var(${variable})`;
  document.body.append(probe);
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
}

/** The step of the axis at or below the lowest value, and the one at or above the highest. */
const decade = (low, high) => [STEPS_MS.findLast(step => step <= (low ?? 1)) ?? 1, STEPS_MS.find(step => step >= (high ?? 1)) ?? high];

/** Where a line of these values begins or ends at nothing: a dot shows it there, or what is known of one bucket alone could not be seen. */
const ends = values => [...values.keys()].filter(at => values[at] !== null && (values[at - 1] === null || values[at + 1] === null));

/** A time on the axis: the day at its beginning. */
function tick(ms) {
  const time = new Date(ms);
  return time.getHours() || time.getMinutes() ? hourMinute(ms) : dayMonth(ms);
}

/** How often there is a point, and over how long: the words for an answer of GET /api/admin/history. */
export const widthOf = history => t(`width.${history.bucketMs}`);
export const rangeOf = history => t(`range.${history.range}.long`);

/**
 * Lines over time with a key that shows the values under the pointer, or `rest` when there is none.
 * `series`: { label (string key), tone (CSS variable), dash }; `format(value)` makes the text of a value, `short(value)` that of the axis; `log`: the axis.
 */
class Plot {
  constructor({ series, format, short = format, log = false, label, now = rangeOf }) {
    this._series = series;
    this._format = format;
    this._short = short;
    this._log = log;
    this._label = label;
    this._now = now;
    this._history = { range: "1h" }; // until there is an answer
    this._means = null;
    this._data = null;
    this._rest = [];
    this._plot = null;
    this._box = h("div", { class: "plot", role: "img" });
    this._key = h("ul", { class: "plot-key" });
    this._none = h("p", { class: "empty", hidden: true });
    this.element = h("div", {}, this._box, this._none, this._key);
    this._drawWords();
    this._observer = new ResizeObserver(() => this._resize());
    this._observer.observe(this._box);
    const theme = () => this.redraw();
    this._scheme = matchMedia("(prefers-color-scheme: dark)");
    this._scheme.addEventListener("change", theme);
    this._theme = new MutationObserver(theme);
    this._theme.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme", "lang"] });
    this._close = () => this._scheme.removeEventListener("change", theme);
  }

  close() {
    this._observer.disconnect();
    this._theme.disconnect();
    this._close();
    this._plot?.destroy();
    this._plot = null;
  }

  /**
   * `history`: the answer that it is of. `data`: [times in s, values of each series…], null where there is none; `rest`: what the
   * key says of each series meanwhile, undefined for a series that is not known; `means`: beside it, over all that is shown.
   */
  update(history, data, rest, means = null) {
    this._history = history;
    this._means = means;
    const first = this._data === null;
    this._data = data;
    this._rest = rest;
    const empty = !data.slice(1).some(values => values.some(value => value));
    this._box.hidden = empty;
    this._none.hidden = !empty;
    if (empty) {
      this._plot?.destroy();
      this._plot = null;
      replace(this._key);
    }
    this._drawWords();
    if (empty) return;
    if (first || this._plot === null) this.redraw();
    else this._plot.setData(data);
    this._drawKey();
  }

  /** Draw it anew: in other colours, another language, another unit. */
  redraw() {
    this._drawWords();
    if (this._data === null || this._box.hidden) return;
    this._plot?.destroy();
    const [text, line] = [resolve("--text-2"), resolve("--line")];
    const axis = { stroke: text, grid: { stroke: line, width: 1 }, ticks: { show: false }, font: `12px ${getComputedStyle(document.body).fontFamily}` };
    const options = {
      width: Math.max(this._box.clientWidth, 200),
      height: HEIGHT,
      padding: [8, 18, 0, 0], // (the last time stands half beyond the axis)
      legend: { show: false },
      cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false } },
      scales: { x: { time: true }, y: this._log ? { distr: 3, log: 10, range: (_, low, high) => decade(low, high) } : { range: (_, low, high) => [0, Math.max(high * 1.08, 0.5)] } },
      series: [
        {},
        ...this._series.map(({ tone, dash, fill }) => ({
          stroke: resolve(tone),
          fill: fill ? resolve(tone).replace("rgb(", "rgba(").replace(")", ", 0.1)") : undefined,
          width: 1.5,
          dash,
          spanGaps: false,
          points: { show: false, filter: (plot, at) => ends(plot.data[at]), size: 5, fill: resolve(tone) },
        })),
      ],
      axes: [
        { ...axis, space: 60, values: (_, splits) => splits.map(seconds => tick(seconds * 1000)), size: 28, gap: 4 },
        {
          ...axis,
          space: 34,
          values: (_, splits) => splits.map(this._log ? wholeUnits : this._short),
          size: 52,
          gap: 6,
          ...(this._log ? { splits: (_, __, low, high) => STEPS_MS.filter(step => step >= low && step <= high), filter: (_, splits) => splits } : {}),
        },
      ],
      hooks: { setCursor: [() => this._drawKey()] },
    };
    this._plot = new uPlot(options, this._data, this._box);
    this._drawKey();
  }

  _drawWords() {
    setText(this._none, t("plot.empty", { range: rangeOf(this._history) }));
    this._box.setAttribute("aria-label", this._label(this._history));
  }

  _resize() {
    const width = this._box.clientWidth;
    if (this._plot && width && Math.abs(width - this._plot.width) > 1) this._plot.setSize({ width, height: HEIGHT });
  }

  _drawKey() {
    const at = this._plot?.cursor.idx ?? null;
    const values = this._series.map((_, index) => (at === null ? this._rest[index] : this._data[index + 1][at]));
    const items = this._series.map(({ label, tone }, index) => {
      if (this._rest[index] === undefined) return null;
      const swatch = h("span", { class: "swatch" });
      swatch.style.setProperty("--tone", `var(${tone})`);
      const value = values[index];
      const text = value === null || value === undefined ? "–" : this._format(value);
      const mean = at === null && this._means ? h("span", { class: "muted" }, t("plot.mean", { value: this._format(this._means[index]) })) : null;
      return h("li", {}, swatch, t(label), " ", h("b", {}, text), mean);
    });
    const [ms, width] = [this._data[0][at] * 1000, this._history.bucketMs];
    const whole = width === DAY_MS; // days are those of UTC
    const when = at === null ? this._now(this._history) : width < TEN_MINUTES_MS ? clock(ms) : whole ? dayMonth(ms) : `${dayMonth(ms)} ${hourMinute(ms)}`;
    replace(this._key, items, h("li", { class: "muted" }, when, " · ", whole ? "UTC" : timeZone()));
  }
}

/** What is drawn: from the first bucket on in which something happened, and at least the last ten minutes and six buckets. */
function shown(history) {
  const counts = ["accepted", "completed", "failed", "cancelled", "refused", "waiting"];
  const first = history.at.findIndex((_, index) => counts.some(name => history[name]?.[index]));
  const latest = Math.max(history.at.length - Math.max(LEAST_MS / history.bucketMs, LEAST_BUCKETS), 0);
  const from = first < 0 ? latest : Math.min(Math.max(first - 1, 0), latest);
  return { times: history.at.slice(from).map(at => at / 1000), column: values => values.slice(from) };
}

const sum = values => values.reduce((all, value) => all + value, 0);

/** What the key says of its values: those of the newest bucket, unless it is so short that there are better ones. */
const latest = key => history => t(history.bucketMs < MINUTE_MS ? key : "plot.latest");

const WAITING = [{ label: "figure.waiting", tone: "--c2", of: "waiting", fill: true }];
const RATES = [
  { label: "rate.accepted", tone: "--c1", of: "accepted" },
  { label: "rate.completed", tone: "--c3", of: "completed", fill: true },
  { label: "rate.failed", tone: "--c5", of: "failed" },
  { label: "rate.cancelled", tone: "--c6", of: "cancelled" },
  { label: "rate.refused", tone: "--c2", of: "refused", dash: [4, 3] },
];
const QUANTILES = [
  { label: "quantile.p50", tone: "--c1", of: "p50" },
  { label: "quantile.p95", tone: "--c4", of: "p95" },
  { label: "quantile.p99", tone: "--c2", of: "p99", dash: [4, 3] },
];

const TOKENS = [
  { label: "tokens.input", tone: "--c1", of: "inputTokens" },
  { label: "tokens.output", tone: "--c3", of: "outputTokens", fill: true },
];

/** The waiting tasks of an answer of GET /api/admin/history. */
export class WaitingPlot extends Plot {
  constructor() {
    super({ series: WAITING, format: value => number(value), short: compact, label: history => t("plot.waiting.long", { range: rangeOf(history) }), now: latest("plot.now") });
  }

  show(history) {
    const { times, column } = shown(history);
    const waiting = column(history.waiting);
    this.update(history, [times, waiting], [waiting.at(-1)], [sum(waiting) / waiting.length]);
  }
}

/** Counts as rates: a second, a minute or an hour, as the buckets are wide. The newest bucket may not be over. */
class RatesPlot extends Plot {
  constructor(series, label) {
    let unit = SECOND_MS;
    super({
      series,
      format: value => t(`rate.unit.${unit}`, { n: number(value, value < 1 ? 2 : value < 10 ? 1 : 0) }),
      label: history => t(label, { range: rangeOf(history) }),
      short: value => t(`rate.unit.${unit}`, { n: compact(value) }),
      now: latest("plot.minute"),
    });
    this._columns = series.map(({ of }) => of);
    this._use = history => (unit = history.bucketMs < MINUTE_MS ? SECOND_MS : history.bucketMs < HOUR_MS ? MINUTE_MS : HOUR_MS);
  }

  show(history) {
    const unit = this._use(history);
    const { times, column } = shown(history);
    const rate = (count, begun, ended) => (count * unit) / (ended - begun);
    const begun = times.map(seconds => seconds * 1000);
    const ended = [...begun.slice(1), history.until];
    const newest = Math.max(MINUTE_MS / history.bucketMs, 1);
    const counts = this._columns.map(name => history[name] && column(history[name]));
    const over = (values, number) => values && rate(sum(values.slice(-number)), begun.at(-number), history.until);
    this.update(
      history,
      [times, ...counts.map(values => begun.map((at, index) => values && rate(values[index], at, ended[index])))],
      counts.map(values => over(values, newest) ?? undefined),
      counts.map(values => over(values, begun.length)),
    );
  }
}

export class RatePlot extends RatesPlot {
  constructor() {
    super(RATES, "plot.rate.long");
  }
}

export class TokensPlot extends RatesPlot {
  constructor() {
    super(TOKENS, "plot.tokens.long");
  }
}

export const USED_TOKENS = TOKENS;
export const USED_TASKS = RATES.filter(({ of }) => ["completed", "failed", "cancelled"].includes(of));

/** What tasks used, a day at a time. */
export class DaysPlot extends Plot {
  constructor(series, label) {
    super({ series, format: value => number(value), short: compact, label: history => t(label, { range: rangeOf(history) }) });
  }

  /** `days`: { range, at (ms), rows (undefined where there is none) }; `total`: of all of them. */
  show({ range, at, rows }, total) {
    const columns = this._series.map(({ of }) => rows.map(row => row?.[of] ?? 0));
    this.update(
      { range, bucketMs: DAY_MS },
      [at.map(ms => ms / 1000), ...columns],
      this._series.map(({ of }) => total[of]),
    );
  }
}

/** Its latencies; `what`: totalMs, waitMs or firstOutputMs. */
export class LatencyPlot extends Plot {
  constructor() {
    let short = "total";
    super({ series: QUANTILES, format: duration, log: true, label: history => t("plot.time.long", { what: t(`plot.${short}`), range: rangeOf(history) }) });
    this._choose = what => (short = what);
  }

  show(history, what, short) {
    this._choose(short);
    const positive = value => (value === null ? null : Math.max(value, 1)); // a logarithm has no zero
    const { times, column } = shown(history);
    const data = [times, ...QUANTILES.map(({ of }) => column(history[what][of]).map(positive))];
    this.update(
      history,
      data,
      QUANTILES.map(({ of }) => history.total[what][of]),
    );
  }
}
