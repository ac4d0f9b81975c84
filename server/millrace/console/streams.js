// Streams and their feeds.

import { html } from "./vendor/console.js";
import { get, path } from "./api.js";
import { archiveStream, dropStream, renameColumn, runSql } from "./actions.js";
import { ask } from "./dialog.js";
import { NONE, bytes, clock, count, counted, iso, percent, rate, span } from "./format.js";
import { Button, Empty, Failure, Figure, Figures, Panel, Spark, Sql, State, Table, Tabs, useAnswer, useCall } from "./kit.js";
import { LogOf } from "./log.js";
import { QueryLink } from "./queries.js";
import { go, to } from "./router.js";
import { all, find, speed, stateOfStream, world } from "./state.js";
import { TailPanel } from "./tail.js";

const COLUMNS = [
  { key: "name", name: "Stream", of: (row) => row.name, show: (row) => html`<a href=${to("streams", row.name)}>${row.name}</a>` },
  { key: "state", name: "State", of: (row) => stateOfStream(row).word, show: (row) => html`<${State} ...${stateOfStream(row)} />` },
  { key: "rate", name: "Tuples", number: true, of: (row) => speed(row, "tuples"), show: (row) => rate(speed(row, "tuples")) },
  { key: "spark", name: "Last minute", show: (row) => html`<${Spark} values=${row.past} />` },
  { key: "all", name: "In all", number: true, of: (row) => row.tuples, show: (row) => count(row.tuples) },
  { key: "late", name: "Late", number: true, of: (row) => row.late, show: (row) => html`<span class=${row.late ? "warning" : ""}>${row.late ? `${count(row.late)} (${percent(row.late / row.tuples)})` : "0"}</span>` },
  { key: "feeds", name: "Feeds", number: true, of: (row) => row.feeds.length, show: (row) => count(row.feeds.length) },
  { key: "mark", name: "Watermark", number: true, of: (row) => row.mark_us, show: (row) => html`<span title=${iso(markOf(row))}>${clock(markOf(row), world.value.at_us)}</span>` },
  { key: "behind", name: "Behind newest", number: true, of: behind, show: (row) => span(behind(row)) },
  { key: "time", name: "Timestamps", of: (row) => row.timestamps, show: (row) => row.timestamps },
];

/** The watermark. That of a side stream moves only where a query waits for it. */
const markOf = (stream) => (stream.name.endsWith(".late") ? null : stream.mark_us);

function behind(stream) {
  return markOf(stream) === null || stream.newest_us === null ? null : Math.max(0, stream.newest_us - stream.mark_us);
}

export function StreamsPage() {
  useCall("millrace stream list", "/api/v1/streams");
  return html`<header class="head"><h1>Streams</h1><div class="tools"><a class="button primary" href=${to("editor")}>New stream</a></div></header>
    <${Panel}><${Table} id="streams" label="Streams" columns=${COLUMNS} rows=${all("streams")} /><//>`;
}

export function StreamPage({ name, part }) {
  const stream = find("streams", name);
  if (!stream) return html`<h1>${name}</h1><${Empty}>No stream is called ${name}. <a href=${to("streams")}>All streams</a><//>`;
  const columns = stream.fields.map(([column]) => column);
  const tabs = [["", "Stream", to("streams", name)], ["rows", "Rows", to("streams", name, "rows")], ["late", "Late ledger", to("streams", name, "late")]];
  const Part = { rows: Rows, late: Ledger }[part] ?? Main;
  return html`
    <header class="head"><h1>${name}</h1><${State} ...${stateOfStream(stream)} />
      <div class="tools">
        ${stream.component && html`<a class="button" href=${to("graph", stream.component, { at: `${name}.source` })}>Graph</a>`}
        ${stream.history && html`<${Button} onClick=${() => ask(archiveStream(name))}>Write history…<//>`}
        ${stream.sql && html`<${Button} onClick=${() => ask(runSql(`ALTER STREAM ${name} SET (disorder = '1 second')`, `Options of ${name}`))}>Options…<//>
        <${Button} onClick=${() => ask(renameColumn(name, columns))}>Rename a column…<//>
        <${Button} onClick=${() => ask(dropStream(name), () => go("streams"))}>Drop…<//>`}
      </div>
    </header>
    <${Tabs} tabs=${tabs} current=${part ?? ""} />
    <${Part} stream=${stream} />`;
}

function Main({ stream }) {
  useCall(`millrace stream show ${stream.name}`, path("streams", stream.name));
  const readers = all("queries").filter((query) => query.reads_streams.includes(stream.name));
  const causes = Object.entries(stream.punctuations_by_cause ?? {}).filter(([, number]) => number);
  return html`
    <${Figures}>
      <${Figure} name="Tuples" value=${rate(speed(stream, "tuples"))} note=${`${count(stream.tuples)} in all`} />
      <${Figure} name="Watermark" value=${clock(markOf(stream), world.value.at_us, 1)} note=${`${span(behind(stream))} behind the newest tuple`} />
      <${Figure} name="Late" value=${count(stream.late)} note=${stream.late ? `up to ${span(stream.late_by_max_us)}` : "none"} />
      <${Figure} name="Rejected" value=${count(stream.rejected)} note="frames" level=${stream.rejected ? "bad" : ""} />
      <${Figure} name="Received" value=${bytes(stream.bytes)} note=${counted(stream.connections, "connection")} />
      <${Figure} name="Punctuation" value=${count(stream.punctuations)} note=${causes.map(([cause, number]) => `${cause} ${count(number)}`).join(", ") || "none"} />
    <//>
    ${stream.withheld_for.length > 0 && html`<p class="failure">Its feeds wait for credit: slow readers of ${stream.withheld_for.join(", ")}.</p>`}
    <${Panel} title="Feeds"><${Feeds} stream=${stream} /><//>
    <div class="columns">
      <${Panel} title="SQL"><${Sql} text=${stream.sql ?? `${stream.name} is made by the server.`} />
        <dl class="facts">${stream.fields.map(([column, type, nullable]) => html`<dt key=${column}>${column}</dt><dd>${type}${nullable ? "" : " not null"}</dd>`)}</dl><//>
      <div>
        <${Panel} title="Downstream">${readers.length ? html`<ul class="links">${readers.map((query) => html`<li key=${query.name}>query <${QueryLink} name=${query.name} /></li>`)}</ul>` : html`<${Empty}>No query reads it.<//>`}<//>
        <${Panel} title="Time"><dl class="facts">
          <dt>timestamps</dt><dd>${stream.timestamps}${stream.time ? `, column ${stream.time}` : ""}</dd>
          <dt>disorder</dt><dd>${span(stream.disorder_us)}</dd>
          <dt>max skew</dt><dd>${stream.max_skew_us === null ? "unlimited" : span(stream.max_skew_us)}</dd>
          <dt>requests for timestamps</dt><dd>${stream.ets}</dd>
          <dt>lull</dt><dd>${stream.lull_us === null ? NONE : span(stream.lull_us)}</dd>
          <dt>component</dt><dd>${stream.component ? html`<a href=${to("components", stream.component)}>${stream.component}</a>` : NONE}</dd>
        </dl><//>
        ${stream.archive && html`<${Panel} title="History"><dl class="facts">
          <dt>reaches</dt><dd>${iso(stream.archive.reach_us)}</dd><dt>rows</dt><dd>${count(stream.archive.rows)} in ${counted(stream.archive.files, "file")}</dd>
          <dt>size</dt><dd>${bytes(stream.archive.bytes)}</dd><dt>waiting</dt><dd>${count(stream.archive.waiting_rows)} rows</dd>
          ${stream.archive.error && html`<dt>error</dt><dd class="bad">${stream.archive.error}</dd>`}</dl><//>`}
      </div>
    </div>
    <${LogOf} name=${stream.name} />`;
}

function Feeds({ stream }) {
  const now = world.value.at_us;
  const columns = [
    { key: "feed", name: "Feed", of: (row) => row.feed, show: (row) => html`<code>${row.feed}</code>` },
    { key: "mark", name: "Watermark", number: true, of: (row) => row.mark_us, show: (row) => html`<span title=${iso(row.mark_us)}>${clock(row.mark_us, now)}</span>` },
    { key: "tuples", name: "Tuples", number: true, of: (row) => row.tuples, show: (row) => count(row.tuples) },
    { key: "late", name: "Late", number: true, of: (row) => row.late, show: (row) => count(row.late) },
    { key: "broke", name: "Broke promise", number: true, of: (row) => row.broke_promise, show: (row) => count(row.broke_promise) },
    { key: "credit", name: "Credit used", number: true, of: (row) => row.credit_used, show: (row) => count(row.credit_used) },
    { key: "answers", name: "Answers", of: (row) => row.can_answer, show: (row) => (row.can_answer ? "yes" : "no") },
    { key: "asked", name: "Requested", number: true, of: (row) => row.requested_at_us, show: (row) => clock(row.requested_at_us, now) },
    { key: "answered", name: "Answered", number: true, of: (row) => row.answered_us, show: (row) => clock(row.answered_us, now) },
  ];
  return html`<${Table} id="feeds" label="Feeds" columns=${columns} rows=${stream.feeds} empty=${`No client feeds ${stream.name}. Feed it: millrace feed ${stream.name} FILE`} />`;
}

function Rows({ stream }) {
  useCall(`millrace sql "SELECT * FROM ${stream.name}"`, path("tail", stream.name));
  return html`<${TailPanel} address=${path("tail", stream.name)} title=${`Tuples of ${stream.name}`} />`;
}

/** The late ledger: which share of the tuples which disorder would have kept, and at which price. */
function Ledger({ stream }) {
  useCall(`millrace late ${stream.name}`, path("streams", stream.name, "late"));
  const { data, error } = useAnswer(() => get(path("streams", stream.name, "late")), [stream.name], 5);
  if (!data) return html`<${Failure} error=${error} />`;
  return html`<${LateLedger} ledger=${data} />`;
}

export function LateLedger({ ledger }) {
  const kept = (row) => (ledger.tuples ? 1 - row.late / ledger.tuples : 1);
  const enough = ledger.disorders.find((row) => kept(row) >= 0.99 && row.disorder_us > ledger.disorder_us);
  const present = ledger.disorders.find((row) => row.disorder_us === ledger.disorder_us);
  // Of several that keep as many, the smallest.
  const rows = ledger.disorders.filter((row, index, all) => row === present || row.late !== all[index - 1]?.late);
  const columns = [
    { key: "disorder", name: "Disorder", number: true, of: (row) => row.disorder_us, show: (row) => html`${span(row.disorder_us)}${row === present ? html` <span class="muted">(present)</span>` : ""}` },
    { key: "kept", name: "On time", number: true, of: kept, show: (row) => `${(kept(row) * 100).toFixed(2)} %` },
    { key: "bar", name: "Share", wide: true, show: (row) => html`<progress max="1" value=${kept(row)} aria-label=${`on time with ${span(row.disorder_us)}`}></progress>` },
    { key: "late", name: "Late", number: true, of: (row) => row.late, show: (row) => count(row.late) },
    { key: "set", name: "Change", show: (row) => row !== present && html`<${Button} kind="quiet" onClick=${() => ask(runSql(`ALTER STREAM ${ledger.stream} SET (disorder = '${row.disorder_us} microseconds')`, `Disorder of ${ledger.stream}`))}>Set…<//>` },
  ];
  return html`<${Panel} title=${`Late ledger of ${ledger.stream}`}>
    <p>${!ledger.tuples ? "No tuples yet." : present && present.late === 0 ? `All ${count(ledger.tuples)} tuples were on time.`
      : enough ? `${span(enough.disorder_us)} would have kept ${(kept(enough) * 100).toFixed(1)} %${ledger.queries.length ? `, at ${span(enough.disorder_us - ledger.disorder_us)} more latency for ${ledger.queries.join(", ")}` : ""}.` : `${counted(present?.late ?? 0, "tuple")} of ${count(ledger.tuples)} were late.`}</p>
    <${Table} id="ledger" label="Late ledger" columns=${columns} rows=${rows} rowKey=${(row) => row.disorder_us} />
    <p class="muted">Counted from ${iso(ledger.since_us)} to ${iso(ledger.until_us)}.</p>
  <//>`;
}
