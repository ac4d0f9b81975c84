// An operator: its counters, state, cost and piece of the plan, what can be done to it, and live rows of its output.

import { html, useLayoutEffect, useRef } from "./vendor/console.js";
import { get, path } from "./api.js";
import { insertOperator, removeOperator, replaceOperator, setBreak, setQueue, setStrategy, unsetBreak } from "./actions.js";
import { ask } from "./dialog.js";
import { bytes, clock, count, iso, percent, rate, span } from "./format.js";
import { Button, Figure, Figures, State, Table, useAnswer } from "./kit.js";
import { WhyWords } from "./graphpanel.js";
import { cost } from "./operators.js";
import { go, to } from "./router.js";
import { may, queued, speed, stateOfOperator, waitsLong, world } from "./state.js";
import { TailPanel } from "./tail.js";

/** What the menu of a box offers: [words, what happens]. */
export function menuOf({ type, item, stream }, unfold) {
  if (type === "stream") return stream ? [["Open the stream", () => go("streams", stream.name)], ["Live tuples", () => go("streams", stream.name, "rows")]] : [];
  if (type === "feed") return [["Open the stream", () => go("streams", item.name)]];
  if (type === "query") return [["Unfold its operators", unfold], ["Open the query", () => go("queries", item.name)], ["Live rows", () => go("queries", item.name, "rows")]];
  if (type === "result") return [["Open the query", () => go("queries", item.queries[0])], ["Live rows", () => go("queries", item.queries[0], "rows")]];
  if (type === "sink") return [["Open the sink", () => go("sinks", item.name)]];
  return type === "operator" ? operatorActions(item) : [];
}

export function operatorActions(operator) {
  const { name } = operator;
  const editable = operator.inserted || operator.kind === "select";
  return [
    ["Open the operator", () => go("operators", name)],
    ...(may("operate") ? [
      operator.break ? ["Unset the break point…", () => ask(unsetBreak(name))] : ["Set a break point…", () => ask(setBreak(name))],
      ["Queue kind…", () => ask(setQueue(operator))],
      ["Strategy…", () => ask(setStrategy(operator.component, operator.strategy ?? "dfs", name))],
      ["Insert a filter…", () => ask(insertOperator(operator))],
      ["Insert a sample…", () => ask(insertOperator(operator, "sample"))],
      ...(editable ? [["Change what it keeps…", () => ask(replaceOperator(operator))], ["Remove…", () => ask(removeOperator(name))]] : []),
    ] : []),
  ];
}

/** A menu at a place of the window; the focus returns to where it came from. */
export function Menu({ items, title, x, y, back, close }) {
  const box = useRef(null);
  const leave = () => {
    close();
    back?.focus();
  };
  useLayoutEffect(() => {
    const { style, offsetWidth, offsetHeight } = box.current;
    style.left = `${Math.max(4, Math.min(x, innerWidth - offsetWidth - 8))}px`;
    style.top = `${Math.max(4, Math.min(y, innerHeight - offsetHeight - 8))}px`;
    box.current.querySelector("button").focus();
    const outside = (event) => !box.current?.contains(event.target) && close();
    addEventListener("pointerdown", outside);
    return () => removeEventListener("pointerdown", outside);
  }, [x, y, title]);
  const onKey = (event) => {
    const buttons = [...box.current.querySelectorAll("button")];
    const here = buttons.indexOf(document.activeElement);
    if (event.key === "Escape" || event.key === "Tab") leave();
    else if (event.key === "ArrowDown") buttons[(here + 1) % buttons.length].focus();
    else if (event.key === "ArrowUp") buttons.at(here - 1).focus();
    else return;
    event.preventDefault();
  };
  return html`<div class="menu" role="menu" aria-label=${`Actions for ${title}`} ref=${box} onKeyDown=${onKey}>
    ${items.map(([words, act]) => html`<button key=${words} type="button" role="menuitem" onClick=${() => (close(), act())}>${words}</button>`)}</div>`;
}

export function OperatorPanel({ operator, setMenu }) {
  const menu = (event) => {
    const { left, bottom } = event.currentTarget.getBoundingClientRect();
    setMenu({ items: operatorActions(operator), title: operator.name, x: left, y: bottom + 4, back: event.currentTarget });
  };
  return html`<h2><a href=${to("operators", operator.name)}>${operator.name}</a></h2>
    <p class="tools"><${State} ...${stateOfOperator(operator)} /><${Button} onClick=${menu} label=${`Actions for ${operator.name}`}>Actions ▾<//></p>
    ${waitsLong(operator) && html`<${WhyWords} query=${operator.queries[0]} />`}
    <${OperatorFacts} operator=${operator} />
    <${TailPanel} key=${operator.name} address=${path("operators", operator.name, "tap")} title="Live rows of its output" rows=${8} plain />`;
}

export function OperatorFacts({ operator }) {
  return html`
    <${Figures}>
      <${Figure} name="In" value=${rate(speed(operator, "input_tuples"))} note=${`${count(operator.input_tuples)} in all`} />
      <${Figure} name="Out" value=${rate(speed(operator, "output_tuples"))} note=${`${count(operator.output_tuples)} in all`} />
      <${Figure} name="Cost" value=${span(cost(operator))} note="per tuple" />
      <${Figure} name="Busy" value=${percent(speed(operator, "busy_us") === null ? null : speed(operator, "busy_us") / 1e6)} note="of a processor" />
      <${Figure} name="Queued" value=${count(queued(operator))} />
      <${Figure} name="State" value=${count(operator.state_tuples)} note=${bytes(operator.state_bytes)} />
      ${operator.errors > 0 && html`<${Figure} name="Errors" value=${count(operator.errors)} level="bad" />`}
    <//>
    ${operator.last_error && html`<p class="failure">${operator.last_error}. The rows are dropped and counted, not kept; the log has the counts.</p>`}
    <h3>Plan</h3><${PlanPiece} operator=${operator} />
    ${operator.inputs.length > 0 && html`<h3>Inputs</h3><${Table} label=${`Inputs of ${operator.name}`} columns=${INPUTS} rows=${operator.inputs.map((input, index) => ({ ...input, index, name: `${index}`, kind: input.queue?.kind ?? operator.queues[index] ?? "append" }))} />`}
    <dl class="facts">
      <dt>kind</dt><dd>${operator.kind}${operator.inserted ? ", inserted" : ""}</dd>
      <dt>queries</dt><dd>${operator.queries.map((name, index) => html`${index ? ", " : ""}<a key=${name} href=${to("queries", name)}>${name}</a>`)}</dd>
      <dt>strategy</dt><dd>${operator.strategy ?? "–"}</dd>
      <dt>break point</dt><dd>${operator.break ?? "none"}</dd>
      <dt>low water</dt><dd title=${iso(operator.low_water_us)}>${clock(operator.low_water_us, world.value.at_us)}</dd>
      <dt>executions</dt><dd>${count(operator.executions)}</dd>
      ${operator.join && html`<dt>join</dt><dd>${operator.join.order}, mode ${operator.join.mode}, ${count(operator.join.switches)} switches</dd>`}
      ${operator.aggregate && html`<dt>aggregate</dt><dd>keeps ${operator.aggregate.keeps}${operator.aggregate.adaptive ? ", adaptive" : ""}</dd>`}
      ${operator.filtered > 0 && html`<dt>below a promise</dt><dd>${count(operator.filtered)}</dd>`}
      ${operator.shed > 0 && html`<dt>left out by the sample</dt><dd>${count(operator.shed)}</dd>`}
      ${operator.superseded > 0 && html`<dt>superseded</dt><dd>${count(operator.superseded)}</dd>`}
    </dl>`;
}

const INPUTS = [
  { key: "from", name: "From", show: (row) => html`<a href=${to("operators", row.from)}>${row.from}</a>` },
  { key: "queued", name: "Queued", number: true, show: (row) => count(row.queue_tuples) },
  { key: "peak", name: "At most", number: true, show: (row) => count(row.peak_queue_tuples) },
  { key: "kind", name: "Queue", show: (row) => row.kind },
  { key: "register", name: "Register", number: true, show: (row) => html`<span title=${iso(row.register_us)}>${clock(row.register_us, world.value.at_us)}</span>` },
  { key: "idle", name: "Held others", number: true, show: (row) => span(row.idle_wait_us) },
];

/** The operator's line of the query's plan. */
function PlanPiece({ operator }) {
  const query = operator.queries[0];
  const { data } = useAnswer(() => (query ? get(path("queries", query, "explain")) : Promise.resolve(null)), [query]);
  const line = data?.text.split("\n").find((one) => one.trim().split(/\s/)[0] === operator.name);
  return html`<pre class="plain" tabindex="0" aria-label="Piece of the plan">${line ? line.trim().slice(operator.name.length).trim() : operator.where ?? operator.kind}</pre>`;
}
