// Sinks: files that receive a query's rows.

import { html } from "./vendor/console.js";
import { path } from "./api.js";
import { dropSink } from "./actions.js";
import { ask } from "./dialog.js";
import { NONE, bytes, clock, count, rate, span } from "./format.js";
import { Button, Empty, Figure, Figures, Panel, Spark, Sql, State, Table, useCall } from "./kit.js";
import { LogOf } from "./log.js";
import { QueryLink } from "./queries.js";
import { go, to } from "./router.js";
import { all, find, speed, stateOfSink, world } from "./state.js";

const COLUMNS = [
  { key: "name", name: "Sink", of: (row) => row.name, show: (row) => html`<a href=${to("sinks", row.name)}>${row.name}</a>` },
  { key: "state", name: "State", of: (row) => row.state, show: (row) => html`<${State} ...${stateOfSink(row)} title=${row.reason ?? ""} />` },
  { key: "query", name: "Query", of: (row) => row.query, show: (row) => html`<${QueryLink} name=${row.query} />` },
  { key: "type", name: "Type", of: (row) => row.type, show: (row) => `${row.type}, ${row.format}` },
  { key: "rate", name: "Rows", number: true, of: (row) => speed(row, "delivered"), show: (row) => rate(speed(row, "delivered")) },
  { key: "spark", name: "Last minute", show: (row) => html`<${Spark} values=${row.past} />` },
  { key: "delivered", name: "Delivered", number: true, of: (row) => row.delivered, show: (row) => count(row.delivered) },
  { key: "held", name: "Queued", number: true, of: (row) => row.held, show: (row) => count(row.held) },
  { key: "dropped", name: "Dropped", number: true, of: (row) => row.dropped, show: (row) => html`<span class=${row.dropped ? "bad" : ""}>${count(row.dropped)}</span>` },
  { key: "lag", name: "Lag", number: true, of: (row) => row.lag_us, show: (row) => span(row.lag_us) },
];

export function SinksPage() {
  useCall("millrace sink list", "/api/v1/sinks");
  return html`<header class="head"><h1>Sinks</h1></header><${Panel}><${Table} id="sinks" label="Sinks" columns=${COLUMNS} rows=${all("sinks")} empty="No sinks yet: CREATE SINK in the editor makes one." /><//>`;
}

export function SinkPage({ name }) {
  const sink = find("sinks", name);
  useCall(`millrace sink show ${name}`, path("sinks", name));
  if (!sink) return html`<h1>${name}</h1><${Empty}>No sink is called ${name}. <a href=${to("sinks")}>All sinks</a><//>`;
  const fresh = sink.freshness;
  return html`
    <header class="head"><h1>${name}</h1><${State} ...${stateOfSink(sink)} /><div class="tools"><${Button} onClick=${() => ask(dropSink(name), () => go("sinks"))}>Drop…<//></div></header>
    ${sink.reason && html`<p class="failure">${sink.reason}${sink.since_us ? `, since ${clock(sink.since_us, world.value.at_us, 0)}` : ""}</p>`}
    <${Figures}>
      <${Figure} name="Rows" value=${rate(speed(sink, "delivered"))} note=${`${count(sink.delivered)} delivered`} />
      <${Figure} name="Queued" value=${count(sink.held)} note=${bytes(sink.held_bytes)} />
      <${Figure} name="Unfinished" value=${count(sink.unfinished)} note="rows not in a complete file" />
      <${Figure} name="Dropped" value=${count(sink.dropped)} level=${sink.dropped ? "bad" : ""} note="rows" />
      <${Figure} name="Lag" value=${span(sink.lag_us)} />
      ${fresh && html`<${Figure} name="Freshness" value=${span(fresh.bound_us)} note=${`${count(fresh.breaches)} breaches, ${count(fresh.late)} late rows`} level=${fresh.breaches ? "bad" : ""} />`}
    <//>
    <div class="columns"><${Panel} title="SQL"><${Sql} text=${sink.sql} /><//>
      <${Panel} title="Upstream and downstream"><dl class="facts">
        <dt>query</dt><dd><${QueryLink} name=${sink.query} /></dd><dt>path</dt><dd><code>${sink.path ?? NONE}</code></dd>
        <dt>format</dt><dd>${sink.format}</dd><dt>when slow</dt><dd>${sink.on_slow}, after ${count(sink.slow_limit)} rows or ${bytes(sink.slow_bytes)}</dd>
      </dl><//></div>
    <${LogOf} name=${name} />`;
}
