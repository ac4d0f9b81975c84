// A chart of a numeric column of a query, grouped by another column, live.

import { html, uPlot, useEffect, useRef, useState } from "./vendor/console.js";
import { path } from "./api.js";
import { clock, count } from "./format.js";
import { Empty, Panel, choose, chosen } from "./kit.js";
import { colour, painted } from "./theme.js";
import { useTail } from "./tail.js";

const POINTS = 600; // for each line
const MOST_LINES = 8;
const PAINT_MS = 400;
const NUMBERS = new Set(["bigint", "double"]);

export function ChartPanel({ query }) {
  const columns = query.fields.map(([name, type]) => ({ name, type }));
  const numbers = columns.filter(({ type }) => NUMBERS.has(type));
  const column = chosen("column", numbers.at(-1)?.name);
  const others = columns.filter(({ name, type }) => name !== column && type !== "timestamp");
  const key = chosen("by", others.find(({ type }) => type === "text")?.name ?? "");
  const time = columns.find(({ type }) => type === "timestamp")?.name;
  if (!numbers.length) return html`<${Panel} title="Chart"><${Empty}>${query.name} has no numeric column.<//><//>`;
  const tools = html`<label class="inline">Column <select value=${column} onChange=${choose("column")}>${numbers.map(({ name }) => html`<option key=${name} value=${name}>${name}</option>`)}</select></label>
    <label class="inline">A line per <select value=${key || "-"} onChange=${choose("by")}><option value="-">all rows</option>${others.map(({ name }) => html`<option key=${name} value=${name}>${name}</option>`)}</select></label>`;
  return html`<${Panel} title=${`${column} of ${query.name}`} tools=${tools} className="chart">
    <${Chart} key=${`${column} ${key}`} address=${path("tail", query.name)} column=${column} by=${key === "-" ? "" : key} time=${time} /><//>`;
}

function Chart({ address, column, by, time }) {
  const box = useRef(null);
  const lines = useRef(new Map());
  const [summary, setSummary] = useState({ points: 0, left: 0 });
  const problem = useTail(address, { from: "latest", limit: 500, every: 0.5 }, ({ rows = [] }) => {
    for (const { at_us, row } of rows) {
      const value = row[column];
      if (typeof value !== "number") continue;
      const name = by ? String(row[by]) : column;
      if (!lines.current.has(name)) {
        if (lines.current.size >= MOST_LINES) {
          left.current.add(name);
          continue;
        }
        lines.current.set(name, []);
      }
      const line = lines.current.get(name);
      const at = time && row[time] ? seconds(row[time]) : at_us / 1e6;
      line.push([at, value]);
      if (line.length > POINTS) line.shift();
    }
  });
  const left = useRef(new Set());
  useEffect(() => {
    let [chart, shown, colours] = [null, "", 0];
    const draw = () => {
      const names = [...lines.current.keys()];
      if (!names.length || !box.current) return;
      const data = uPlot.join(names.map((name) => transposed(lines.current.get(name))));
      if (data[0].length < 2) return; // a point alone has no axis
      if (chart && shown === names.join() && colours === painted.value) chart.setData(data);
      else {
        chart?.destroy();
        [shown, colours] = [names.join(), painted.value];
        chart = new uPlot(options(names, box.current), data, box.current);
      }
      setSummary({ points: data[0].length, left: left.current.size });
    };
    const timer = setInterval(draw, PAINT_MS);
    const watch = new ResizeObserver(([{ contentRect }]) => chart?.setSize({ width: contentRect.width, height: chart.height }));
    watch.observe(box.current);
    return () => {
      clearInterval(timer);
      watch.disconnect();
      chart?.destroy();
    };
  }, []);
  return html`${problem && html`<p class="failure" role="alert">${problem.message}</p>`}
    <div class="plot" ref=${box} role="img" aria-label=${`Chart of ${column}, ${summary.points} points`}></div>
    ${!summary.points && html`<${Empty}>Waiting for the next rows.<//>`}
    <p class="muted">${count(summary.points)} points${summary.left ? `; ${count(summary.left)} more values of ${by} have no line` : ""}. Drag to enlarge a part, double-click to go back.</p>`;
}

const seconds = (value) => (typeof value === "number" ? value / 1e6 : Date.parse(value) / 1e3);

function transposed(points) {
  const sorted = [...points].sort((a, b) => a[0] - b[0]);
  return [sorted.map(([at]) => at), sorted.map(([, value]) => value)];
}

function options(names, box) {
  const axis = { stroke: colour("muted"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line") }, font: "12px system-ui" };
  return {
    width: box.clientWidth,
    height: Math.max(240, Math.min(460, innerHeight - 360)),
    padding: [12, 36, 0, 0],
    axes: [{ ...axis, values: (_, splits, __, ___, step) => splits.map((at) => clock(at * 1e6, null, step < 1 ? 1 : 0)) }, { ...axis, size: 64 }],
    series: [{ label: "time", value: (_, at) => (at === null ? "–" : clock(at * 1e6, null)) }, ...names.map((name, index) => ({ label: name, stroke: colour(`series-${(index % MOST_LINES) + 1}`), width: 1.6, spanGaps: true, points: { size: 4 } }))],
  };
}
