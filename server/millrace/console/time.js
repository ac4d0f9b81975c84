// Event time of a query on one axis: how far each input has come, what it may still send, which windows are final, and
// which tuples were late.

import { html, useEffect, useLayoutEffect, useRef, useState } from "./vendor/console.js";
import { get, path } from "./api.js";
import { clock, count, iso, span } from "./format.js";
import { Empty, Panel, Table, useAnswer } from "./kit.js";
import { LateLedger, streamsBelow } from "./streams.js";
import { to } from "./router.js";
import { find, membersOf, summary, world } from "./state.js";
import { useTail } from "./tail.js";

const MOST_LATE = 200;

export function TimePanel({ query }) {
  const late = useRef(new Map());
  const streams = streamsBelow(query);
  const inputs = streams.map((stream) => ({ ...stream, dots: late.current.get(stream.name) ?? [] }));
  // Windows that end before the promise of their aggregate are final.
  const final = membersOf(query.name).filter(({ kind, low_water_us: reached }) => kind === "aggregate" && reached !== null).map((one) => one.low_water_us);
  return html`
    ${streams.filter(({ name }) => find("streams", `${name}.late`)).map(({ name }) => html`<${LateDots} key=${name} name=${name} into=${late.current} />`)}
    <${Panel} title=${`Event time of ${query.name}`}>
      ${!inputs.length ? html`<${Empty}>No event time yet.<//>` : html`<${Axis} inputs=${inputs} final=${final.length ? Math.min(...final) : null} />
      <${Table} id="marks" label="Watermarks" rows=${inputs} columns=${COLUMNS} />
      <p class="muted">Results are ${span(summary(query).lag_us)} behind the newest input.</p>`}
    <//>
    ${streams.filter(({ timestamps }) => timestamps === "external").map((stream) => html`<${Ledger} key=${stream.name} name=${stream.name} />`)}`;
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
  { key: "slack", name: "Watermark behind", number: true, of: slack, show: (row) => span(slack(row)) },
  { key: "late", name: "Late", number: true, of: (row) => row.late, show: (row) => count(row.late) },
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

/** A row per input, and one for the windows. */
function Axis({ inputs, final }) {
  const box = useRef(null);
  const [width, setWidth] = useState(900);
  useLayoutEffect(() => {
    const watch = new ResizeObserver(([{ contentRect }]) => setWidth(Math.max(420, contentRect.width)));
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  const main = [...inputs.flatMap((input) => [input.mark_us, input.newest_us]), final].filter((at) => at !== null);
  const newest = Math.max(...main);
  const reach = Math.max(newest - Math.min(...main), 5e6);
  // Late tuples widen the axis, but only so far: one from last year must not squeeze the present into a line.
  const late = inputs.flatMap(({ dots }) => dots.map(({ ts_us }) => ts_us)).filter((at) => at > newest - 6 * reach);
  const first = Math.min(...main, ...late) - reach * 0.1;
  const last = newest + reach * 0.1;
  const x = (at) => LEFT + ((Math.max(at, first) - first) / (last - first)) * (width - LEFT - 16);
  const height = inputs.length * ROW + (final === null ? 0 : ROW) + 34;
  const ticks = Array.from({ length: 5 }, (_, index) => first + ((index + 0.5) / 5) * (last - first));
  const bottom = height - 26;
  return html`<div class="axis" ref=${box}>${main.length > 0 && html`<svg width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`} role="img" aria-label=${`Event time: ${inputs.map((input) => `${input.name} at ${iso(input.mark_us)}`).join("; ")}`}>
    ${ticks.map((at, index) => html`<g key=${index}><line class="grid" x1=${x(at)} x2=${x(at)} y1="4" y2=${bottom} /><text class="tick" x=${x(at)} y=${bottom + 16} text-anchor="middle">${clock(at, world.value.at_us, last - first < 20e6 ? 1 : 0)}</text></g>`)}
    ${inputs.map((input, index) => html`<${Input} key=${input.name} input=${input} first=${first} y=${8 + index * ROW} x=${x} right=${width - 16} />`)}
    ${final !== null && html`<g class="windows" transform=${`translate(0,${8 + inputs.length * ROW})`}>
      <text class="name" x="0" y="24">windows</text>
      <rect class="closed" x=${LEFT} width=${Math.max(0, x(final) - LEFT)} y="9" height="22"><title>closed up to ${iso(final)}</title></rect>
      <rect class="open" x=${x(final)} width=${Math.max(2, x(newest) - x(final))} y="9" height="22"><title>open from ${iso(final)}</title></rect>
    </g>`}
  </svg>`}
  <ul class="legend" aria-label="Legend"><li><span class="key mark"></span>watermark: nothing earlier is on time</li><li><span class="key span"></span>from the watermark to the newest tuple</li><li><span class="key dot"></span>late tuple</li><li><span class="key closed"></span>closed windows</li><li><span class="key open"></span>open windows</li></ul></div>`;
}

function Input({ input, first, y, x, right }) {
  const { mark_us: mark, newest_us: newest } = input;
  return html`<g class="input" transform=${`translate(0,${y})`}>
    <text class="name" x="0" y="24">${input.name}</text>
    <line class="track" x1=${LEFT} x2=${right} y1="20" y2="20" />
    ${mark !== null && newest !== null && newest > mark && html`<rect class="span" x=${x(mark)} width=${x(newest) - x(mark)} y="14" height="12" />`}
    ${newest !== null && html`<circle class="newest" cx=${x(newest)} cy="20" r="4"><title>newest tuple ${iso(newest)}</title></circle>`}
    ${mark !== null && html`<path class="mark" d=${`M${x(mark)},8v24M${x(mark) - 5},4h10l-5,7z`}><title>watermark ${iso(mark)}</title></path>`}
    ${input.dots.filter(({ ts_us }) => ts_us > first).map(({ ts_us, by_us }, index) => html`<circle key=${index} class="late" cx=${x(ts_us)} cy="20" r="3"><title>${iso(ts_us)}, late by ${span(by_us)}</title></circle>`)}
  </g>`;
}
