// Event time of a query on one axis: how far each input has come, what it may still send, which windows are open, and
// which tuples were late.

import { html, useLayoutEffect, useRef, useState } from "./vendor/console.js";
import { get, path } from "./api.js";
import { clock, count, iso, span } from "./format.js";
import { Empty, Failure, Panel, Table, useAnswer } from "./kit.js";
import { LateLedger, streamsBelow } from "./streams.js";
import { to } from "./router.js";
import { summary } from "./state.js";

export function TimePanel({ query }) {
  const { data, error } = useAnswer(() => get(path("queries", query.name, "time")), [query.name], 1);
  const inputs = data?.streams ?? [];
  return html`<${Failure} error=${error} />
    <${Panel} title=${`Event time of ${query.name}`}>
      ${!inputs.length ? html`<${Empty}>${error ? "" : "No event time yet."}<//>` : html`<${Axis} inputs=${inputs} />
      <${Table} id="marks" label="Watermarks" rows=${inputs.map((input) => ({ ...input, name: input.stream }))} columns=${COLUMNS} />
      <p class="muted">Results are ${span(summary(query).lag_us)} after the newest input.</p>`}
    <//>
    ${streamsBelow(query).filter(({ timestamps }) => timestamps === "external").map((stream) => html`<${Ledger} key=${stream.name} name=${stream.name} />`)}`;
}

const COLUMNS = [
  { key: "stream", name: "Input", of: (row) => row.stream, show: (row) => html`<a href=${to("streams", row.stream)}>${row.stream}</a>` },
  { key: "mark", name: "Watermark", number: true, of: (row) => row.mark_us, show: (row) => iso(row.mark_us) },
  { key: "newest", name: "Newest tuple", number: true, of: (row) => row.newest_us, show: (row) => iso(row.newest_us) },
  { key: "disorder", name: "Disorder", number: true, of: (row) => row.disorder_us, show: (row) => span(row.disorder_us) },
  { key: "slack", name: "Watermark behind", number: true, of: slack, show: (row) => span(slack(row)) },
  { key: "open", name: "Open windows", number: true, show: (row) => (row.windows ? count(row.windows.open.length) : "–") },
  { key: "late", name: "Late lately", number: true, of: (row) => row.late.length, show: (row) => count(row.late.length) },
];

function slack(row) {
  return row.mark_us === null || row.newest_us === null ? null : Math.max(0, row.newest_us - row.mark_us);
}

function Ledger({ name }) {
  const { data } = useAnswer(() => get(path("streams", name, "late")), [name], 5);
  return data && html`<${LateLedger} ledger=${data} />`;
}

const LEFT = 150;
const ROW = 46;
const MOST_WINDOWS = 60;

/** A row per input, and one for the windows. */
function Axis({ inputs }) {
  const box = useRef(null);
  const [width, setWidth] = useState(900);
  useLayoutEffect(() => {
    const watch = new ResizeObserver(() => setWidth(Math.max(420, box.current.clientWidth)));
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  const windows = inputs.find((input) => input.windows?.open.length || input.windows?.closed_until_us)?.windows ?? null;
  const open = windows?.open.slice(-MOST_WINDOWS) ?? [];
  const known = (values) => values.filter((value) => value !== null && value !== undefined);
  const main = known([...inputs.flatMap((input) => [input.mark_us, input.newest_us]), ...open]);
  if (!main.length) return html`<${Empty}>No tuple yet.<//>`;
  const newest = Math.max(...main);
  const reach = Math.max(newest - Math.min(...main), 1e6);
  // Late tuples widen the axis, but only so far: one from last year must not squeeze the present into a line.
  const latest = inputs.flatMap((input) => input.late.map(({ ts_us }) => ts_us)).filter((at) => at > newest - 4 * reach);
  const first = Math.min(...main, ...latest) - reach * 0.06;
  const last = newest + reach * 0.06;
  const x = (at) => LEFT + ((Math.max(at, first) - first) / (last - first)) * (width - LEFT - 16);
  const height = inputs.length * ROW + (windows ? ROW : 0) + 34;
  const ticks = Array.from({ length: 5 }, (_, index) => first + ((index + 0.5) / 5) * (last - first));
  const bottom = height - 26;
  const size = windowSize(windows);
  return html`<div class="axis" ref=${box}><svg width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`} role="img" aria-label=${`Event time: ${inputs.map((input) => `${input.stream} at ${iso(input.mark_us)}`).join("; ")}`}>
    ${ticks.map((at, index) => html`<g key=${index}><line class="grid" x1=${x(at)} x2=${x(at)} y1="4" y2=${bottom} /><text class="tick" x=${x(at)} y=${bottom + 16} text-anchor="middle">${clock(at, null, last - first < 20e6 ? 1 : 0)}</text></g>`)}
    ${inputs.map((input, index) => html`<${Input} key=${input.stream} input=${input} y=${8 + index * ROW} x=${x} right=${width - 16} />`)}
    ${windows && html`<g class="windows" transform=${`translate(0,${8 + inputs.length * ROW})`}>
      <text class="name" x="0" y="24">windows</text>
      ${windows.closed_until_us !== null && html`<rect class="closed" x=${LEFT} width=${Math.max(0, x(windows.closed_until_us) - LEFT)} y="10" height="22"><title>closed up to ${iso(windows.closed_until_us)}</title></rect>`}
      ${open.map((start, index) => html`<rect key=${start} class="open" x=${x(start)} width=${Math.max(3, x(start + size) - x(start) - 1)} y=${10 + (index % 2) * 4} height="18"><title>open from ${iso(start)}</title></rect>`)}
    </g>`}
  </svg>
  <ul class="legend" aria-label="Legend"><li><span class="key mark"></span>watermark: nothing earlier is on time</li><li><span class="key span"></span>from the watermark to the newest tuple</li><li><span class="key dot"></span>late tuple</li><li><span class="key open"></span>open window</li><li><span class="key closed"></span>closed</li></ul></div>`;
}

/** The distance of two windows: the server names only where each starts. */
const windowSize = (windows) => (windows?.size_us ?? (windows?.open.length > 1 ? windows.open[1] - windows.open[0] : 0));

function Input({ input, y, x, right }) {
  const { mark_us: mark, newest_us: newest } = input;
  return html`<g class="input" transform=${`translate(0,${y})`}>
    <text class="name" x="0" y="24">${input.stream}</text>
    <line class="track" x1=${LEFT} x2=${right} y1="20" y2="20" />
    ${mark !== null && newest !== null && newest > mark && html`<rect class="span" x=${x(mark)} width=${x(newest) - x(mark)} y="14" height="12" />`}
    ${newest !== null && html`<circle class="newest" cx=${x(newest)} cy="20" r="4"><title>newest tuple ${iso(newest)}</title></circle>`}
    ${mark !== null && html`<path class="mark" d=${`M${x(mark)},8v24M${x(mark) - 5},4h10l-5,7z`}><title>watermark ${iso(mark)}</title></path>`}
    ${input.late.map(({ ts_us, by_us }, index) => html`<circle key=${index} class="late" cx=${x(ts_us)} cy="20" r="3"><title>${iso(ts_us)}, late by ${span(by_us)}</title></circle>`)}
  </g>`;
}
