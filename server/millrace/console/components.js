// Components: the state table as the papers print it, its strategy, and trials of another one.

import { html, useState } from "./vendor/console.js";
import { call, get, path } from "./api.js";
import { setStrategy, setWeight } from "./actions.js";
import { ask } from "./dialog.js";
import { bytes, count, rate } from "./format.js";
import { Button, Empty, Failure, Figure, Figures, Panel, State, Table, Tabs, useAnswer, useCall } from "./kit.js";
import { LogOf } from "./log.js";
import { OperatorTable } from "./operators.js";
import { Rows } from "./plan.js";
import { to } from "./router.js";
import { all, find, limited, speed, waitsLong } from "./state.js";
import { TrialPanel } from "./trial.js";

const members = (component) => component.operators.map((name) => find("operators", name)).filter(Boolean);
const stateOf = (component) => {
  const waiting = members(component).filter(waitsLong).length;
  if (waiting) return { word: `${waiting} waiting`, level: "bad" };
  return speed(component, "steps") ? { word: "working", level: "good" } : { word: "quiet", level: "idle" };
};

const COLUMNS = [
  { key: "name", name: "Component", of: (row) => row.name, show: (row) => html`<a href=${to("components", row.name)}>${row.name}</a>` },
  { key: "state", name: "State", of: (row) => stateOf(row).word, show: (row) => html`<${State} ...${stateOf(row)} />` },
  { key: "strategy", name: "Strategy", of: (row) => row.strategy, show: (row) => row.strategy },
  { key: "weight", name: "Weight", number: true, of: (row) => row.weight, show: (row) => count(row.weight) },
  { key: "operators", name: "Operators", number: true, of: (row) => row.operators.length, show: (row) => count(row.operators.length) },
  { key: "steps", name: "Steps", number: true, of: (row) => speed(row, "steps"), show: (row) => rate(speed(row, "steps")) },
  { key: "queued", name: "Queued", number: true, of: (row) => row.queued, show: (row) => `${count(row.queued)} (${bytes(row.queued_bytes)})` },
  { key: "breaks", name: "Break points", number: true, of: (row) => Object.keys(row.breaks).length, show: (row) => count(Object.keys(row.breaks).length) },
  { key: "graph", name: "Graph", show: (row) => html`<a href=${to("graph", row.name)}>graph</a>` },
];

export function ComponentsPage() {
  useCall("millrace component list", "/api/v1/components");
  return html`<header class="head"><h1>Components</h1></header><${Panel}><${Table} id="components" label="Components" columns=${COLUMNS} rows=${all("components")} empty=${limited() ? "Your token is for single streams and queries; components belong to several." : "No components yet: a query makes one."} /><//>`;
}

export function ComponentPage({ name, part }) {
  const component = find("components", name);
  if (!component) return html`<h1>${name}</h1><${Empty}>No component is called ${name}. <a href=${to("components")}>All components</a><//>`;
  const tabs = [["", "State table", to("components", name)], ["operators", "Operators", to("components", name, "operators")]];
  return html`
    <header class="head"><h1>${name}</h1><${State} ...${stateOf(component)} /><div class="tools">
      <a class="button" href=${to("graph", name)}>Graph</a><${Button} onClick=${() => ask(setWeight(name, component.weight))}>Weight…<//></div></header>
    <${Tabs} tabs=${tabs} current=${part ?? ""} />
    <${Figures}>
      <${Figure} name="Strategy" value=${component.strategy} note=${own(component)} />
      <${Figure} name="Steps" value=${rate(speed(component, "steps"))} note=${`${count(component.steps)} in all`} />
      <${Figure} name="Queued" value=${count(component.queued)} note=${bytes(component.queued_bytes)} />
      <${Figure} name="Weight" value=${count(component.weight)} note="share of the processor" />
      <${Figure} name="Break points" value=${count(Object.keys(component.breaks).length)} />
    <//>
    ${part === "operators" ? html`<${Members} component=${component} />` : html`<${StateTable} component=${component} />`}`;
}

const own = (component) => {
  const different = Object.values(component.strategies).filter((one) => one !== component.strategy).length;
  return different ? `${different} operators have their own` : "for all operators";
};

function Members({ component }) {
  useCall(`millrace component show ${component.name}`, path("components", component.name));
  const operators = members(component);
  const queries = all("queries").filter((query) => query.component === component.name);
  const streams = all("streams").filter((stream) => stream.component === component.name && !stream.name.endsWith(".late"));
  const failed = operators.filter(({ errors }) => errors);
  const links = (kind, items) => html`<ul class="links">${items.map(({ name }) => html`<li key=${name}><a href=${to(kind, name)}>${name}</a></li>`)}</ul>`;
  return html`<${Panel} title="Operators"><${OperatorTable} operators=${operators} /><//>
    <div class="columns"><${Panel} title="Streams">${links("streams", streams)}<//><${Panel} title="Queries">${links("queries", queries)}<//></div>
    ${failed.length > 0 && html`<${Panel} title="Errors"><ul>${failed.map((one) => html`<li key=${one.name}><a href=${to("operators", one.name)}>${one.name}</a>: ${count(one.errors)} rows could not be computed. <code>${one.last_error}</code></li>`)}</ul><//>`}
    <${LogOf} name=${component.name} />`;
}

const STRATEGIES = ["dfs", "bfs", "rr", "chain"];

function StateTable({ component }) {
  useCall(`millrace component table ${component.name} --rules`, path("components", component.name, "table"));
  const settings = JSON.stringify([component.strategies, component.breaks, component.operators]);
  const { data, error } = useAnswer(() => get(path("components", component.name, "table")), [component.name, settings], 5);
  const [strategy, setStrategyTo] = useState("");
  return html`
    <${Failure} error=${error} />
    <${Panel} title="Change the strategy" tools=${html`
        <label class="inline">Strategy <select id="strategy" value=${strategy} onChange=${(event) => setStrategyTo(event.target.value)}>
          <option value="">as it is (${component.strategy})</option>
          ${STRATEGIES.filter((one) => one !== component.strategy).map((one) => html`<option key=${one} value=${one}>${one}</option>`)}
        </select></label>
        <${Button} disabled=${!strategy} onClick=${() => ask(setStrategy(component.name, strategy))}>Set…<//>`}>
      ${strategy ? html`<${Preview} key=${strategy} name=${component.name} strategy=${strategy} />` : html`<${Empty}>Choose a strategy to see the rows that would change, and to try it.<//>`}
      <${TrialPanel} component=${component} strategy=${strategy} />
    <//>
    ${data && html`<${Panel} title="State table"><${Table} id="state-table" label="State table" rows=${data.rows} columns=${columns(data)} /><//>
    <${Panel} title="Rules"><dl class="facts">${Object.entries(data.rules).map(([transition, moves]) => html`<dt key=${transition}>${transition}</dt><dd>${moves.join(", then ")}</dd>`)}</dl><//>`}`;
}

const operatorLinks = (names) => names.map((name, index) => html`${index ? ", " : ""}<a key=${name} href=${to("operators", name)}>${name}</a>`);
const columns = (table) => [
  { key: "state", name: "state", of: (row) => row.state, show: (row) => html`<a href=${to("operators", row.state)}>${row.state}</a>` },
  { key: "pred", name: "pred", show: (row) => (row.pred.length ? operatorLinks(row.pred) : "–") },
  { key: "succ", name: "succ", show: (row) => (row.succ.length ? operatorLinks(row.succ) : "–") },
  { key: "transition", name: "transition", of: (row) => row.transition, show: (row) => html`<span title=${(table.rules[row.transition] ?? []).join(", then ")}>${row.transition}</span>` },
  ...(table.rows.some((row) => row.chain) ? [
    { key: "slope", name: "slope", number: true, of: (row) => row.chain?.slope, show: (row) => row.chain?.slope.toPrecision(3) ?? "–" },
    { key: "segment", name: "segment", of: (row) => row.chain?.segment, show: (row) => row.chain?.segment ?? "–" },
  ] : []),
];

/** The rows of the table that another strategy would replace. */
function Preview({ name, strategy }) {
  const { data, error } = useAnswer(async () => (await call("PUT", `${path("components", name, "strategy")}?dry_run=true`, { body: { strategy } })).data, [name, strategy]);
  if (!data) return html`<${Failure} error=${error} />`;
  const { table } = data.plan;
  return table.after.length ? html`<p>${count(table.after.length)} rows would change:</p><${Rows} table=${table} />` : html`<${Empty}>No row would change.<//>`;
}
