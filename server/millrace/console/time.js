// Event time of a query on one axis: how far each input has come, what it may still send, which windows are open and which
// were emitted, and which tuples were late.

import { html, useEffect, useLayoutEffect, useRef, useState } from "./vendor/console.js";
import { get, path } from "./api.js";
import { clock, count, counted, iso, span } from "./format.js";
import { Empty, Failure, Panel, Table, useAnswer } from "./kit.js";
import { LateLedger } from "./streams.js";
import { to } from "./router.js";
import { find, summary } from "./state.js";
import { useTail } from "./tail.js";

const MOST_LATE = 200;

export function TimePanel({ query }) {
  const late = useRef(new Map());
  const { data, error } = useAnswer(() => get(path("queries", query.name, "time")), [query.name], 1);
  const inputs = (data?.inputs ?? []).map((input) => ({ ...input, name: input.stream, dots: late.current.get(input.stream) ?? [] }));
  const external = inputs.filter(({ name }) => find("streams", name)?.timestamps === "external");
  return html`
    ${inputs.filter(({ name }) => find("streams", `${name}.late`)).map(({ name }) => html`<${LateDots} key=${name} name=${name} into=${late.current} />`)}
    <${Panel} title=${`Event time of ${query.name}`}>
      <${Failure} error=${error} />
      ${data && (inputs.some(({ newest_us: newest }) => newest !== null) ? html`<${Axis} inputs=${inputs} windows=${data.windows} now=${data.at_us} />
      <${Table} id="marks" label="Watermarks" rows=${inputs} columns=${COLUMNS} />` : html`<${Empty}>No event time yet.<//>`)}
      ${data?.windows.length > 0 && html`<${Table} id="windows" label="Windows" rows=${data.windows} columns=${WINDOWS} rowKey=${(row) => row.operator} />`}
      <p class="muted">Results are ${span(summary(query).lag_us)} behind the newest input.</p>
    <//>
    ${external.map(({ name }) => html`<${Ledger} key=${name} name=${name} />`)}`;
}

/** Collects the newest late tuples of a stream; the page is drawn again with the next numbers. */
function LateDots({ name, into }) {
  useEffect(() => () => into.delete(name), [name]);
  useTail(path("tail", `${name}.late`), { from: "0", limit: MOST_LATE, every: 1 }, ({ rows = [] }) => {
    const fresh = rows.map(({ row }) => ({ ts_us: microseconds(row.ts), by_us: row.late_by_us ?? 0 }));
    into.set(name, [...(into.get(name) ?? []), ...fresh].slice(-MOST_LATE));
  });
  return null;
}

const microseconds = (value) => (typeof value === "number" ? value : Date.parse(value) * 1e3);

const COLUMNS = [
  { key: "stream", name: "Input", of: (row) => row.name, show: (row) => html`<a href=${to("streams", row.name)}>${row.name}</a>` },
  { key: "mark", name: "Watermark", number: true, of: (row) => row.mark_us, show: (row) => iso(row.mark_us) },
  { key: "newest", name: "Newest tuple", number: true, of: (row) => row.newest_us, show: (row) => iso(row.newest_us) },
  { key: "disorder", name: "Disorder", number: true, of: (row) => row.disorder_us, show: (row) => span(row.disorder_us) },
  { key: "slack", name: "Watermark behind", number: true, of: (row) => row.slack_us, show: (row) => span(row.slack_us) },
  { key: "late", name: "Late", number: true, of: (row) => row.late, show: (row) => count(row.late) },
];

const WINDOWS = [
  { key: "operator", name: "Windows of", of: (row) => row.operator, show: (row) => html`<a href=${to("operators", row.operator)}>${row.operator}</a>` },
  { key: "size", name: "Length", number: true, of: (row) => row.size_us ?? row.gap_us, show: (row) => (row.gap_us === null ? span(row.size_us) : `sessions with gaps of ${span(row.gap_us)}`) },
  { key: "slide", name: "Every", number: true, of: (row) => row.slide_us, show: (row) => span(row.slide_us) },
  { key: "open", name: "Open", number: true, of: (row) => row.open_count, show: (row) => count(row.open_count) },
  { key: "closed", name: "Closed up to", number: true, of: (row) => row.closed_us, show: (row) => iso(row.closed_us) },
];

function Ledger({ name }) {
  const { data } = useAnswer(() => get(path("streams", name, "late")), [name], 5);
  return data && html`<${LateLedger} ledger=${data} />`;
}

const ROW = 46;
const LANE = 11;
const MOST_LANES = 6;
const MOST_CLOSED = 300;

/** The windows that have ended, as far back as the axis reaches: they lie on a grid. */
function closedWindows({ size_us: size, slide_us: slide, offset_us: offset, closed_us: closed }, first) {
  if (size === null || closed === null) return [];
  const last = Math.floor((closed - offset - size) / slide);
  const found = [];
  for (let number = last; number > last - MOST_CLOSED; number--) {
    const start = offset + number * slide;
    if (start + size < first) break;
    found.push({ start_us: start, end_us: start + size });
  }
  return found.reverse();
}

/** Windows that overlap lie below each other: those of a grid always in the same lane, sessions where there is room. */
function inLanes(windows, { size_us: size, slide_us: slide }) {
  const ends = [];
  const lanes = slide === null ? MOST_LANES : Math.min(MOST_LANES, Math.ceil(size / slide));
  return windows.map((one) => {
    const free = ends.findIndex((end) => end <= one.start_us);
    const room = free >= 0 ? free : Math.min(ends.length, lanes - 1);
    const lane = slide === null ? room : ((Math.floor(one.start_us / slide) % lanes) + lanes) % lanes;
    ends[lane] = one.end_us;
    return { ...one, lane };
  });
}

/** A row per input, and one for the windows of each operator. */
function Axis({ inputs, windows, now }) {
  const box = useRef(null);
  const [width, setWidth] = useState(900);
  useLayoutEffect(() => {
    const watch = new ResizeObserver(([{ contentRect }]) => setWidth(Math.max(320, contentRect.width)));
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  const known = (times) => times.filter((at) => at !== null);
  const main = known(inputs.flatMap((input) => [input.mark_us, input.newest_us]));
  const newest = Math.max(...main);
  const longest = Math.max(0, ...windows.map((one) => one.size_us ?? one.gap_us));
  const reach = Math.max(newest - Math.min(...main), 5e6, Math.min(2.5 * longest, 3600e6));
  // Late tuples and windows widen the axis, but only so far: one from last year must not squeeze the present into a line.
  const opened = windows.flatMap(({ open }) => open.flatMap((one) => [one.start_us, one.end_us]));
  const near = [...inputs.flatMap(({ dots }) => dots.map(({ ts_us }) => ts_us)), ...opened].filter((at) => Math.abs(newest - at) < 4 * reach);
  const first = Math.min(newest - reach, ...main, ...near) - reach * 0.05;
  const last = Math.max(newest, ...near) + reach * 0.05;
  const left = width < 600 ? 96 : 150; // for the names
  const x = (at) => left + ((Math.max(at, first) - first) / (last - first)) * (width - left - 16);
  const rows = windows.map((one) => ({ ...one, boxes: inLanes([...closedWindows(one, first), ...one.open.map((box) => ({ ...box, open: true }))], one) }));
  const heights = rows.map(({ boxes }) => 18 + LANE * (1 + Math.max(0, ...boxes.map(({ lane }) => lane))));
  const height = inputs.length * ROW + heights.reduce((sum, one) => sum + one, 0) + 34;
  const most = Math.max(2, Math.min(5, Math.floor((width - left) / 100)));
  const ticks = Array.from({ length: most }, (_, index) => first + ((index + 0.5) / most) * (last - first));
  const bottom = height - 26;
  const spoken = [...inputs.map((input) => `${input.name} at ${iso(input.mark_us)}`), ...windows.map((one) => `${one.operator} has ${counted(one.open_count, "open window")}`)];
  return html`<div class="axis" ref=${box}><svg width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`} role="img" aria-label=${`Event time: ${spoken.join("; ")}`}>
    ${ticks.map((at, index) => html`<g key=${index}><line class="grid" x1=${x(at)} x2=${x(at)} y1="4" y2=${bottom} /><text class="tick" x=${x(at)} y=${bottom + 16} text-anchor="middle">${clock(at, now, last - first < 20e6 ? 1 : 0)}</text></g>`)}
    ${inputs.map((input, index) => html`<${Input} key=${input.name} input=${input} first=${first} left=${left} y=${8 + index * ROW} x=${x} right=${width - 16} />`)}
    ${rows.map((row, index) => html`<${Windows} key=${row.operator} row=${row} y=${8 + inputs.length * ROW + heights.slice(0, index).reduce((sum, one) => sum + one, 0)} x=${x} end=${last} letters=${Math.floor(left / 7.2)} />`)}
  </svg>
  <ul class="legend" aria-label="Legend"><li><span class="key mark"></span>watermark: nothing earlier is on time</li><li><span class="key span"></span>from the watermark to the newest tuple</li><li><span class="key dot"></span>late tuple</li>${windows.length > 0 && html`<li><span class="key closed"></span>closed window</li><li><span class="key open"></span>open window with tuples</li>`}</ul></div>`;
}

const short = (text, letters) => (text.length > letters ? `${text.slice(0, letters - 1)}…` : text);

function Windows({ row, y, x, end, letters }) {
  return html`<g class="windows" transform=${`translate(0,${y})`}>
    <text class="name" x="0" y="18">${short(row.operator, letters)}<title>${row.operator}</title></text>
    ${row.boxes.map((one) => html`<rect key=${`${one.start_us} ${one.lane}`} class=${one.open ? "open" : "closed"} x=${x(one.start_us) + 1} width=${Math.max(1.5, x(Math.min(one.end_us, end)) - x(one.start_us) - 2)}
      y=${6 + one.lane * LANE} height=${LANE - 2} rx="1.5"><title>${one.open ? "open" : "closed"}: ${iso(one.start_us)} to ${iso(one.end_us)}</title></rect>`)}
  </g>`;
}

function Input({ input, first, left, y, x, right }) {
  const { mark_us: mark, newest_us: newest } = input;
  return html`<g class="input" transform=${`translate(0,${y})`}>
    <text class="name" x="0" y="24">${input.name}</text>
    <line class="track" x1=${left} x2=${right} y1="20" y2="20" />
    ${mark !== null && newest !== null && newest > mark && html`<rect class="span" x=${x(mark)} width=${x(newest) - x(mark)} y="14" height="12" />`}
    ${newest !== null && html`<circle class="newest" cx=${x(newest)} cy="20" r="4"><title>newest tuple ${iso(newest)}</title></circle>`}
    ${mark !== null && html`<path class="mark" d=${`M${x(mark)},8v24M${x(mark) - 5},4h10l-5,7z`}><title>watermark ${iso(mark)}</title></path>`}
    ${input.dots.filter(({ ts_us }) => ts_us > first).map(({ ts_us, by_us }, index) => html`<circle key=${index} class="late" cx=${x(ts_us)} cy="20" r="3"><title>${iso(ts_us)}, late by ${span(by_us)}</title></circle>`)}
  </g>`;
}
