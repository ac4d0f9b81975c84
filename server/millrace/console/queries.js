// Queries: the list, and the page of one.

import { html } from "./vendor/console.js";
import { get, path } from "./api.js";
import { dropQuery, orderQuery, pauseQuery, renameQuery, resumeQuery, unshareQuery } from "./actions.js";
import { ask } from "./dialog.js";
import { NONE, bytes, clock, count, counted, iso, rate, span } from "./format.js";
import { Button, Empty, Failure, Figure, Figures, Panel, Sentence, Spark, Sql, State, Table, Tabs, useAnswer, useCall } from "./kit.js";
import { LogOf } from "./log.js";
import { Try } from "./overview.js";
import { OperatorTable } from "./operators.js";
import { go, to } from "./router.js";
import { all, find, membersOf, stateOf, summary, world } from "./state.js";
import { TailPanel } from "./tail.js";
import { ChartPanel } from "./chart.js";
import { TimePanel } from "./time.js";

export const QueryLink = ({ name }) => html`<a href=${to("queries", name)}>${name}</a>`;

export function QueryTable({ queries }) {
  const rows = queries.map((query) => ({ name: query.name, query, ...summary(query) }));
  const columns = [
    { key: "name", name: "Query", of: (row) => row.name, show: (row) => html`<${QueryLink} name=${row.name} />` },
    { key: "state", name: "State", of: (row) => row.state.word, show: (row) => html`<${State} ...${row.state} title=${row.query.reason ?? ""} />` },
    { key: "rate", name: "Rows", number: true, of: (row) => row.rate, show: (row) => rate(row.rate) },
    { key: "spark", name: "Last minute", show: (row) => html`<${Spark} values=${row.query.past} />` },
    { key: "lag", name: "Lag", number: true, of: (row) => row.lag_us, show: (row) => span(row.lag_us) },
    { key: "held", name: "Waiting", number: true, of: (row) => row.held, show: (row) => html`<span class=${row.held && row.state.level === "bad" ? "bad" : ""}>${count(row.held)}</span>` },
    { key: "late", name: "Late", number: true, of: (row) => row.late, show: (row) => count(row.late) },
    { key: "errors", name: "Errors", number: true, of: (row) => row.errors, show: (row) => html`<span class=${row.errors ? "bad" : ""}>${count(row.errors)}</span>` },
    { key: "age", name: "Last row", number: true, of: (row) => row.age_us, show: (row) => (row.age_us === null ? NONE : row.age_us < 2e6 ? "now" : `${span(row.age_us)} ago`) },
    { key: "graph", name: "Graph", show: (row) => html`<a href=${to("graph", row.query.component, { query: row.name })}>${row.query.component}</a>` },
  ];
  return html`<${Table} id="queries" label="Queries" columns=${columns} rows=${rows} rowClass=${(row) => (row.state.level === "bad" ? "is-bad" : "")}
    empty="No queries yet. Write one in the editor." />`;
}

export function QueriesPage() {
  useCall("millrace query list", "/api/v1/queries");
  return html`<header class="head"><h1>Queries</h1><div class="tools"><a class="button primary" href=${to("editor")}>New query</a></div></header>
    <${Panel}><${QueryTable} queries=${all("queries")} /><//>`;
}

const PARTS = { rows: ["Rows", TailOf], chart: ["Chart", ChartOf], time: ["Time", TimeOf], plan: ["Plan", PlanOf] };

export function QueryPage({ name, part }) {
  const query = find("queries", name);
  if (!query) return html`<h1>${name}</h1><${Empty}>No query is called ${name}. <a href=${to("queries")}>All queries</a><//>`;
  const tabs = [["", "Query", to("queries", name)], ...Object.entries(PARTS).map(([key, [title]]) => [key, title, to("queries", name, key)])];
  const Part = PARTS[part]?.[1] ?? Main;
  return html`
    <header class="head"><h1>${name}</h1><${State} ...${stateOf(query)} />
      <div class="tools">
        ${query.state === "running" ? html`<${Button} onClick=${() => ask(pauseQuery(name))}>Pause…<//>` : html`<${Button} kind="primary" onClick=${() => ask(resumeQuery(name))}>Resume…<//>`}
        <a class="button" href=${to("editor", name)}>Edit SQL</a>
        <a class="button" href=${to("graph", query.component, { query: name })}>Graph</a>
        <${Button} onClick=${() => ask(renameQuery(name), (done) => go("queries", done.name ?? done.query ?? ""))}>Rename…<//>
        ${Object.keys(query.joins).length > 0 && html`<${Button} onClick=${() => ask(orderQuery(name))}>Order…<//>`}
        ${query.shared.length > 0 && html`<${Button} onClick=${() => ask(unshareQuery(name))}>Unshare…<//>`}
        <${Button} onClick=${() => ask(dropQuery(name), () => go("queries"))}>Drop…<//>
      </div>
    </header>
    <${Tabs} tabs=${tabs} current=${PARTS[part] ? part : ""} />
    <${Part} query=${query} />`;
}

function Main({ query }) {
  useCall(`millrace query show ${query.name}`, path("queries", query.name));
  const numbers = summary(query);
  const members = membersOf(query.name);
  const readers = all("queries").filter((other) => other.reads_queries.includes(query.name));
  const sinks = all("sinks").filter((sink) => sink.query === query.name);
  return html`
    <${WhyPanel} query=${query} />
    <${Figures}>
      <${Figure} name="Rows" value=${rate(numbers.rate)} note=${`${count(query.rows)} in all`} />
      <${Figure} name="Lag" value=${span(numbers.lag_us)} note="results after newest input" />
      <${Figure} name="Waiting" value=${count(numbers.held)} note="queued tuples" />
      <${Figure} name="State" value=${count(query.state_tuples)} note=${query.max_state ? `of ${count(query.max_state)} tuples` : "tuples"} />
      <${Figure} name="Retained" value=${count(query.retained_tuples)} note=${bytes(query.retained_bytes)} />
      <${Figure} name="Late" value=${count(numbers.late)} note="tuples of its streams" />
      <${Figure} name="Errors" value=${count(numbers.errors)} level=${numbers.errors ? "bad" : ""} />
      <${Figure} name="Skipped" value=${count(query.skipped)} note="while paused" />
    <//>
    <div class="columns">
      <${Panel} title="SQL"><${Sql} text=${query.sql} /><//>
      <div>
        <${Panel} title="Upstream"><ul class="links">
          ${query.reads_streams.map((one) => html`<li key=${one}>stream <a href=${to("streams", one)}>${one}</a></li>`)}
          ${query.reads_queries.map((one) => html`<li key=${one}>query <${QueryLink} name=${one} /></li>`)}
        </ul><//>
        <${Panel} title="Downstream"><ul class="links">
          ${sinks.map((sink) => html`<li key=${sink.name}>sink <a href=${to("sinks", sink.name)}>${sink.name}</a></li>`)}
          ${readers.map((other) => html`<li key=${other.name}>query <${QueryLink} name=${other.name} /></li>`)}
          <li>${counted(query.subscribers, "subscriber")}</li>
        </ul><//>
        <${Panel} title="Facts"><dl class="facts">
          <dt>component</dt><dd><a href=${to("components", query.component)}>${query.component}</a></dd>
          <dt>order</dt><dd>${query.order}${Object.entries(query.joins).map(([join, { order }]) => `, ${join}: ${order}`)}</dd>
          <dt>update key</dt><dd>${query.update_key?.length ? query.update_key.join(", ") : "none: all rows are kept"}</dd>
          <dt>started</dt><dd title=${iso(query.since_us)}>${clock(query.since_us, world.value.at_us, 0)} (from ${query.start})</dd>
          <dt>sequence</dt><dd>${count(query.oldest_sequence)} to ${count(query.next_sequence)}</dd>
          ${query.restarted && html`<dt>restarted</dt><dd>${query.restarted.text}</dd>`}
        </dl><//>
      </div>
    </div>
    <${Errors} operators=${members.filter(({ errors }) => errors)} lost=${query.lost} />
    <${Panel} title="Operators"><${OperatorTable} operators=${members} /><//>
    <${LogOf} name=${query.name} />`;
}

function Errors({ operators, lost }) {
  if (!operators.length && !lost) return null;
  return html`<${Panel} title="Errors"><p>A row that cannot be computed is dropped and counted. It is not kept; the log has the counts and reasons.</p><ul>
    ${operators.map((one) => html`<li key=${one.name}><a href=${to("operators", one.name)}>${one.name}</a>: ${counted(one.errors, "row")} could not be computed. ${one.last_error && html`<code>${one.last_error}</code>`}</li>`)}
    ${lost > 0 && html`<li>${counted(lost, "row")} were lost when the query failed.</li>`}
  </ul><//>`;
}

/** Why the query emits no rows, in words, kept current. */
export function WhyPanel({ query }) {
  const { data: why, error } = useAnswer(() => get(path("queries", query.name, "why")), [query.name], 2);
  const { level } = stateOf(query);
  return html`<${Panel} className=${`why ${level === "bad" ? "is-bad" : ""}`} title="Why">
    <p><${Sentence} text=${why?.text ?? error?.message ?? "…"} /></p>
    ${why?.try && html`<${Try} command=${why.try} />`}
  <//>`;
}

function TailOf({ query }) {
  useCall(`millrace tail ${query.name}`, path("tail", query.name));
  const failed = summary(query).errors;
  return html`<${TailPanel} address=${path("tail", query.name)} title=${`Rows of ${query.name}`} />
    ${failed > 0 && html`<p class="warning">${counted(failed, "row")} could not be computed, and ${failed === 1 ? "is" : "are"} not among these: <a href=${to("queries", query.name)}>errors of ${query.name}</a>.</p>`}`;
}

function ChartOf({ query }) {
  useCall(`millrace tail ${query.name} --json`, path("tail", query.name));
  return html`<${ChartPanel} query=${query} />`;
}

function TimeOf({ query }) {
  useCall(`millrace query time ${query.name}`, path("queries", query.name, "time"));
  return html`<${TimePanel} query=${query} />`;
}

function PlanOf({ query }) {
  useCall(`millrace explain ${query.name} --analyze`, `${path("queries", query.name, "explain")}?analyze=true`);
  const { data, error } = useAnswer(() => get(`${path("queries", query.name, "explain")}?analyze=true`), [query.name], 5);
  return html`<${Failure} error=${error} />
    ${data && html`<${Panel} title="Plan"><pre class="plain is-table" tabindex="0" aria-label="Plan">${data.text}</pre><//>
    <${Panel} title=${`Measured over ${span(data.seconds * 1e6)}`}><${Table} label="Measured operators" rows=${data.operators} columns=${MEASURED} /><//>
    ${data.shared.length > 0 && html`<${Panel} title="Shared operators"><ul>${data.shared.map((one) => html`<li key=${one.node}><code>${one.operator}</code> ${one.with.length ? `is shared with ${one.with.join(", ")}` : `is separate: ${one.apart}`}</li>`)}</ul><//>`}`}`;
}

const MEASURED = [
  { key: "name", name: "Operator", of: (row) => row.name, show: (row) => html`<a href=${to("operators", row.name)}>${row.name}</a>` },
  { key: "kind", name: "Kind", of: (row) => row.kind, show: (row) => row.kind },
  { key: "in", name: "In", number: true, of: (row) => row.input, show: (row) => rate(row.input) },
  { key: "out", name: "Out", number: true, of: (row) => row.output, show: (row) => rate(row.output) },
  { key: "selectivity", name: "Selectivity", number: true, of: (row) => row.selectivity, show: (row) => row.selectivity?.toPrecision(3) ?? NONE },
  { key: "cost", name: "Cost", number: true, of: (row) => row.cost_us, show: (row) => span(row.cost_us) },
  { key: "queue", name: "Queued", number: true, of: (row) => row.queue_tuples, show: (row) => count(row.queue_tuples) },
  { key: "state", name: "State", number: true, of: (row) => row.state_tuples, show: (row) => `${count(row.state_tuples)} (${bytes(row.state_bytes)})` },
];
