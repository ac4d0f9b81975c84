// The overview: is something wrong, with which query, and what would help.

import { html } from "./vendor/console.js";
import { get, path } from "./api.js";
import { actionOf } from "./actions.js";
import { ask } from "./dialog.js";
import { bytes, count, counted, percent, rate } from "./format.js";
import { Button, Copied, Empty, Figure, Figures, Panel, Sentence, State, useAnswer, useCall } from "./kit.js";
import { QueryTable } from "./queries.js";
import { to } from "./router.js";
import { all, limited, queued, speed, stateOf, stateOfSink, world } from "./state.js";

const total = (items, of) => items.reduce((sum, item) => sum + (of(item) ?? 0), 0);

export function Overview() {
  useCall("millrace top", "/api/v1/events");
  const { server, health } = world.value;
  const [queries, streams, operators] = [all("queries"), all("streams"), all("operators")];
  const states = queries.map((query) => stateOf(query));
  const bad = states.filter(({ level }) => level === "bad").length;
  const late = total(streams, (stream) => stream.late);
  const errors = total(operators, (operator) => operator.errors);
  const held = total(operators, queued);
  const memory = server.memory;
  return html`
    <h1 class="hidden">Overview</h1>
    <${Figures}>
      <${Figure} name="Queries" value=${count(queries.length)} note=${bad ? `${bad} in trouble` : "none in trouble"} level=${bad ? "bad" : ""} href=${to("queries")} />
      <${Figure} name="Tuples in" value=${rate(total(streams.filter(({ feeds }) => feeds.length), (stream) => speed(stream, "tuples")))} note=${counted(total(streams, (stream) => stream.feeds.length), "feed")} href=${to("streams")} />
      <${Figure} name="Rows out" value=${rate(total(queries, (query) => speed(query, "rows")))} note=${counted(total(queries, (query) => query.subscribers), "subscriber")} />
      <${Figure} name="Queued" value=${count(held)} note="tuples" />
      <${Figure} name="Late" value=${count(late)} note="tuples" />
      <${Figure} name="Errors" value=${count(errors)} note="rows that failed" level=${errors ? "bad" : ""} />
      ${server.overload && html`<${Figure} name="Load" value=${percent(server.overload.load)} note=${server.overload.mode === "none" ? "no overload" : `overload: ${server.overload.mode}`} level=${server.overload.mode === "none" ? "" : "bad"} />`}
      ${memory && html`<${Figure} name="Memory" value=${bytes(memory.used_bytes)} note=${memory.budget_bytes ? `of ${bytes(memory.budget_bytes)}` : "no budget"} level=${memory.stage === "enough" ? "" : "bad"} />`}
    <//>
    <${Problems} health=${health} server=${server} />
    <${Trouble} queries=${queries} />
    <${Panel} title="Queries"><${QueryTable} queries=${queries} /><//>
    ${!limited() && html`<${Advice} />`}
  `;
}

function Problems({ health, server }) {
  const problems = [...new Set([...(health?.problems ?? []), ...server.problems])];
  return problems.length ? html`<${Panel} title="Server"><ul class="problems">${problems.map((text) => html`<li key=${text}>${text}</li>`)}</ul><//>` : null;
}

/** Each query in trouble, as one red word and the sentence of \`why\`. */
function Trouble({ queries }) {
  const bad = queries.filter((query) => stateOf(query).level === "bad");
  const sinks = all("sinks").filter((sink) => stateOfSink(sink).level === "bad");
  if (!bad.length && !sinks.length) return null;
  return html`<${Panel} title="Trouble" className="trouble">
    ${bad.map((query) => html`<${Wait} key=${query.name} query=${query} />`)}
    ${sinks.map((sink) => html`<article key=${sink.name}><p><${State} ...${stateOfSink(sink)} /> <a href=${to("sinks", sink.name)}>${sink.name}</a> ${sink.reason}</p></article>`)}
  <//>`;
}

function Wait({ query }) {
  const { data: why } = useAnswer(() => get(path("queries", query.name, "why")), [query.name], 2);
  return html`<article>
    <p><${State} ...${stateOf(query)} /> <a href=${to("queries", query.name)}>${query.name}</a> <${Sentence} text=${why ? why.text : query.reason} /></p>
    ${why && html`<p class="tools">
      ${why.operator && html`<a class="button" href=${to("graph", query.component, { at: why.operator, why: query.name })}>Show in the graph</a>`}
      ${why.try && html`<${Try} command=${why.try} />`}
    </p>`}
  </article>`;
}

/** A command that would help, and a button where it is a change. */
export function Try({ command }) {
  const action = actionOf(command);
  return html`<span class="try"><${Copied} label="try" text=${command} />${action && html`<${Button} onClick=${() => ask(action)}>Apply…<//>`}</span>`;
}

function Advice() {
  const { data, error } = useAnswer(() => get(path("advice")), [], 15);
  return html`<${Panel} title="Advice" id="advice">
    ${data === null ? html`<${Empty}>${error ? error.message : "Examining…"}<//>` : data.length === 0 ? html`<${Empty}>Nothing to advise.<//>`
      : html`<ul class="advice">${data.map((one, index) => html`<li key=${index}><p><${Sentence} text=${one.text} /></p>${one.try && html`<${Try} command=${one.try} />`}</li>`)}</ul>`}
  <//>`;
}
