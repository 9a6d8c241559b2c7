// The plots of the last hour, by uPlot: waiting tasks, throughput, and latency percentiles.

import { h, radios, replace, setText } from "../common/dom.js";
import { clock, compact, duration, hourMinute, number, timeZone, wholeUnits } from "../common/format.js";
import { t } from "../common/i18n.js";
import { panel } from "./view.js";

const HEIGHT = 190;
const MIN_MS = 600_000; // a new gateway shows ten minutes, not an empty hour with a line at its edge
const MINUTE_MS = 60_000;
const STEPS_MS = [1, 10, 100, 1000, 10_000, 60_000, 600_000, 3_600_000, 36_000_000];
const COUNTS = ["accepted", "completed", "failed", "cancelled", "rejected", "waiting"];

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

const mean = values => values.reduce((all, value) => all + value, 0) / values.length;
const lastMinute = (values, { bucketMs }) => mean(values.slice(-MINUTE_MS / bucketMs));
const perSecond = (values, { bucketMs }) => values.map(count => (count * 1000) / bucketMs);
const positive = values => values.map(value => (value === null ? null : Math.max(value, 1))); // a logarithm has no zero

/**
 * { name (of its strings), series, format(value), short(value) (on the axis), log (the axis), now (a string: of when the values in the key
 * are), choices, column(history, series, choice) → the values of an answer of GET /api/admin/timeseries, rest(values, history, series,
 * choice) → the value in the key, means (whether their means follow) }. A series: { name, label (a string), tone (CSS variable), dash, fill }.
 */
export const PLOTS = [
  {
    name: "waiting",
    series: [{ name: "waiting", label: "col.waiting", tone: "--c2", fill: true }],
    format: value => number(value),
    short: compact,
    now: "plot.now",
    column: history => history.waiting,
    rest: values => values.at(-1),
    means: true,
  },
  {
    name: "rate",
    series: [
      { name: "accepted", label: "series.accepted", tone: "--c1" },
      { name: "completed", label: "status.completed", tone: "--c3", fill: true },
      { name: "failed", label: "status.failed", tone: "--c5" },
      { name: "cancelled", label: "status.cancelled", tone: "--c6" },
      { name: "rejected", label: "series.rejected", tone: "--c2", dash: [4, 3] },
    ],
    format: value => t("rate.unit", { n: number(value, value < 1 ? 2 : value < 10 ? 1 : 0) }),
    short: value => t("rate.unit", { n: compact(value) }),
    now: "plot.minute",
    column: (history, { name }) => perSecond(history[name], history),
    rest: lastMinute,
    means: true,
  },
  {
    name: "time",
    series: [
      { name: "p50", label: "series.p50", tone: "--c1" },
      { name: "p95", label: "series.p95", tone: "--c4" },
      { name: "p99", label: "series.p99", tone: "--c2", dash: [4, 3] },
    ],
    format: duration,
    short: wholeUnits,
    log: true,
    now: "plot.hour",
    choices: ["totalMs", "waitMs", "firstOutputMs"],
    column: (history, { name }, choice) => positive(history[choice][name]),
    rest: (_, history, { name }, choice) => history.total[choice][name],
  },
];

/** A panel with lines over time and a key that shows the values under the pointer. */
export class Plot {
  constructor(spec) {
    this._spec = spec;
    this._choice = spec.choices?.[0];
    this._history = null;
    this._plot = null;
    this._box = h("div", { class: "plot", role: "img", "aria-label": t(`plot.${spec.name}.long`) });
    this._key = h("ul", { class: "plot-key" });
    this._none = h("p", { class: "empty", hidden: true }, t("plot.empty"));
    this.element = panel(spec.name, t(`plot.${spec.name}`), { end: spec.choices ? this._choices() : [] }, this._box, this._none, this._key);
    this._observer = new ResizeObserver(() => this._resize());
    this._observer.observe(this._box);
    this._closed = new AbortController();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this._draw(), { signal: this._closed.signal });
    this._theme = new MutationObserver(() => this._draw());
    this._theme.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
  }

  close() {
    this._observer.disconnect();
    this._theme.disconnect();
    this._closed.abort();
    this._plot?.destroy();
  }

  _choices() {
    const texts = this._spec.choices.map(name => [name, h("span", {}, t(`plot.${name}`))]);
    const choose = name => {
      this._choice = name;
      this.show(this._history);
    };
    return h("div", { class: "segmented compact", role: "radiogroup", "aria-label": t("plot.choice") }, radios("measure", texts, this._choice, choose));
  }

  /** Draw an answer of GET /api/admin/timeseries, from the first bucket in which something happened, and at least ten minutes. */
  show(history) {
    if (history === null) return;
    const { series, column, rest } = this._spec;
    const first = history.at.findIndex((_, index) => COUNTS.some(name => history[name][index]));
    const latest = history.at.length - MIN_MS / history.bucketMs;
    const from = first < 0 ? latest : Math.min(Math.max(first - 1, 0), latest);
    const columns = series.map(one => column(history, one, this._choice).slice(from));
    this._history = history;
    this._data = [history.at.slice(from).map(at => at / 1000), ...columns];
    this._rest = series.map((one, index) => rest(columns[index], history, one, this._choice));
    const empty = !columns.some(values => values.some(value => value));
    this._box.hidden = this._key.hidden = empty;
    this._none.hidden = !empty;
    if (empty) return;
    if (this._plot) this._plot.setData(this._data);
    else this._draw();
    this._drawKey();
  }

  /** Draw it from the beginning: for the first time, or in other colours. */
  _draw() {
    if (this._history === null || this._box.hidden) return;
    this._plot?.destroy();
    const { series, short, log } = this._spec;
    const axis = { stroke: resolve("--text-2"), grid: { stroke: resolve("--line"), width: 1 }, ticks: { show: false }, font: `12px ${getComputedStyle(document.body).fontFamily}` };
    const options = {
      width: Math.max(this._box.clientWidth, 200),
      height: HEIGHT,
      padding: [8, 18, 0, 0], // (the last time stands half beyond the axis)
      legend: { show: false },
      cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false } },
      scales: { x: { time: true }, y: log ? { distr: 3, log: 10, range: (_, low, high) => decade(low, high) } : { range: (_, low, high) => [0, Math.max(high * 1.08, 0.5)] } },
      series: [
        {},
        ...series.map(({ tone, dash, fill }) => ({
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
          values: (_, splits) => splits.map(short),
          size: 52,
          gap: 6,
          ...(log ? { splits: (_, __, low, high) => STEPS_MS.filter(step => step >= low && step <= high), filter: (_, splits) => splits } : {}),
        },
      ],
      hooks: { setCursor: [() => this._drawKey()] },
    };
    this._plot = new uPlot(options, this._data, this._box);
  }

  _resize() {
    const width = this._box.clientWidth;
    if (this._plot && width && Math.abs(width - this._plot.width) > 1) this._plot.setSize({ width, height: HEIGHT });
  }

  _drawKey() {
    const { series, format, means, now } = this._spec;
    const at = this._plot?.cursor.idx ?? null;
    const items = series.map(({ label, tone }, index) => {
      const swatch = h("span", { class: "swatch" });
      swatch.style.setProperty("--tone", `var(${tone})`);
      const value = at === null ? this._rest[index] : this._data[index + 1][at];
      const average = at === null && means ? h("span", { class: "muted" }, t("plot.mean", { value: format(mean(this._data[index + 1])) })) : null;
      return h("li", {}, swatch, t(label), " ", h("b", {}, (value ?? null) === null ? "–" : format(value)), average);
    });
    replace(this._key, items, h("li", { class: "muted" }, at === null ? t(now) : clock(this._data[0][at] * 1000), " · ", timeZone()));
  }
}
