// The plots of the last hour, by uPlot: waiting tasks, throughput, and latency percentiles.

import { h, replace, setText } from "../common/dom.js";
import { clock, compact, duration, hourMinute, number, timeZone, wholeUnits } from "../common/format.js";
import { t } from "../common/i18n.js";

const HEIGHT = 190;
const MIN_MS = 600_000; // a new gateway shows ten minutes, not an empty hour with a line at its edge
const MINUTE_MS = 60_000;
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

/**
 * Lines over time with a key that shows the values under the pointer, or `rest` when there is none.
 * `series`: { label (string key), tone (CSS variable), dash }; `format(value)` makes the text of a value, `short(value)` that of the axis; `log`: the axis;
 * `label()` names it for screen readers, `now()` says of when its values are.
 */
class Plot {
  constructor({ series, format, short = format, log = false, label, now = () => t("plot.hour") }) {
    this._series = series;
    this._format = format;
    this._short = short;
    this._log = log;
    this._label = label;
    this._now = now;
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
   * `data`: [times in s, values of each series…], null where there is none; `rest`: the values in the key while the pointer is
   * elsewhere; `means`: those over all that is shown.
   */
  update(data, rest, means = null) {
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

  /** Draw it again: in other colours, another language, another unit. */
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
        { ...axis, space: 60, values: (_, splits) => splits.map(seconds => hourMinute(seconds * 1000)), size: 28, gap: 4 },
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
    setText(this._none, t("plot.empty"));
    this._box.setAttribute("aria-label", this._label());
  }

  _resize() {
    const width = this._box.clientWidth;
    if (this._plot && width && Math.abs(width - this._plot.width) > 1) this._plot.setSize({ width, height: HEIGHT });
  }

  _drawKey() {
    const at = this._plot?.cursor.idx ?? null;
    const values = this._series.map((_, index) => (at === null ? this._rest[index] : this._data[index + 1][at]));
    const items = this._series.map(({ label, tone }, index) => {
      const swatch = h("span", { class: "swatch" });
      swatch.style.setProperty("--tone", `var(${tone})`);
      const value = values[index];
      const text = value === null || value === undefined ? "–" : this._format(value);
      const mean = at === null && this._means ? h("span", { class: "muted" }, t("plot.mean", { value: this._format(this._means[index]) })) : null;
      return h("li", {}, swatch, t(label), " ", h("b", {}, text), mean);
    });
    const when = at === null ? this._now() : clock(this._data[0][at] * 1000);
    replace(this._key, items, h("li", { class: "muted" }, when, " · ", timeZone()));
  }
}

/** What is drawn: from the first bucket in which something happened, and at least the last ten minutes. */
function shown(history) {
  const counts = ["accepted", "completed", "failed", "cancelled", "rejected", "waiting"];
  const first = history.at.findIndex((_, index) => counts.some(name => history[name][index]));
  const latest = history.at.length - MIN_MS / history.bucketMs;
  const from = first < 0 ? latest : Math.min(Math.max(first - 1, 0), latest);
  return { times: history.at.slice(from).map(at => at / 1000), column: values => values.slice(from) };
}

const mean = values => values.reduce((all, value) => all + value, 0) / values.length;

const RATES = [
  { label: "rate.accepted", tone: "--c1", of: "accepted" },
  { label: "rate.completed", tone: "--c3", of: "completed", fill: true },
  { label: "rate.failed", tone: "--c5", of: "failed" },
  { label: "rate.cancelled", tone: "--c6", of: "cancelled" },
  { label: "rate.rejected", tone: "--c2", of: "rejected", dash: [4, 3] },
];
const QUANTILES = [
  { label: "quantile.p50", tone: "--c1", of: "p50" },
  { label: "quantile.p95", tone: "--c4", of: "p95" },
  { label: "quantile.p99", tone: "--c2", of: "p99", dash: [4, 3] },
];

/** The waiting tasks of an answer of GET /api/admin/timeseries. */
export class WaitingPlot extends Plot {
  constructor() {
    super({ series: [{ label: "figure.waiting", tone: "--c2", fill: true }], format: value => number(value), short: compact, label: () => t("plot.waiting.long"), now: () => t("plot.now") });
  }

  show(history) {
    const { times, column } = shown(history);
    const waiting = column(history.waiting);
    this.update([times, waiting], [waiting.at(-1)], [mean(waiting)]);
  }
}

/** Its counts, as rates per second. */
export class RatePlot extends Plot {
  constructor() {
    super({
      series: RATES,
      format: value => t("rate.unit", { n: number(value, value < 1 ? 2 : value < 10 ? 1 : 0) }),
      short: value => t("rate.unit", { n: compact(value) }),
      label: () => t("plot.rate.long"),
      now: () => t("plot.minute"),
    });
  }

  show(history) {
    const { times, column } = shown(history);
    const columns = RATES.map(({ of }) => column(history[of]).map(count => (count * 1000) / history.bucketMs));
    this.update([times, ...columns], columns.map(values => mean(values.slice(-MINUTE_MS / history.bucketMs))), columns.map(mean));
  }
}

/** Its latencies; `what`: totalMs, waitMs or firstOutputMs. */
export class LatencyPlot extends Plot {
  constructor() {
    let short = "total";
    super({ series: QUANTILES, format: duration, log: true, label: () => t("plot.time.long", { what: t(`plot.${short}`) }) });
    this._choose = what => (short = what);
  }

  show(history, what, short) {
    this._choose(short);
    const positive = value => (value === null ? null : Math.max(value, 1)); // a logarithm has no zero
    const { times, column } = shown(history);
    this.update([times, ...QUANTILES.map(({ of }) => column(history[what][of]).map(positive))], QUANTILES.map(({ of }) => history.total[what][of]));
  }
}
