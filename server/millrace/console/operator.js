// The page of an operator.

import { html, useState } from "./vendor/console.js";
import { path } from "./api.js";
import { Button, Empty, Panel, Sql, State, useCall } from "./kit.js";
import { LogOf } from "./log.js";
import { Menu, OperatorFacts, operatorActions } from "./operatorpanel.js";
import { go, to } from "./router.js";
import { all, find, stateOfOperator } from "./state.js";
import { TailPanel } from "./tail.js";

const MOST_TEXTS = 3; // an operator may be shared by hundreds of queries

export function OperatorPage({ name }) {
  useCall(`millrace operator show ${name}`, path("operators", name));
  const [menu, setMenu] = useState(null);
  const operator = find("operators", name);
  if (!operator) return html`<h1>${name}</h1><${Empty}>No operator is called ${name}. <a href=${to("components")}>All components</a><//>`;
  const readers = all("operators").filter((other) => other.reads.includes(name));
  const show = (event) => {
    const { left, bottom } = event.currentTarget.getBoundingClientRect();
    setMenu({ items: operatorActions(operator).slice(1), title: name, x: left, y: bottom + 4, back: event.currentTarget });
  };
  return html`
    <header class="head"><h1>${name}</h1><${State} ...${stateOfOperator(operator)} /><div class="tools">
      <${Button} onClick=${show}>Actions ▾<//><${Button} onClick=${() => go("graph", operator.component, { at: name })}>Graph<//></div></header>
    <div class="columns">
      <${Panel} title="Operator"><${OperatorFacts} operator=${operator} /><//>
      <div>
        <${Panel} title="Upstream"><ul class="links">${operator.reads.map((one) => html`<li key=${one}><a href=${to("operators", one)}>${one}</a></li>`)}${!operator.reads.length && html`<li>clients</li>`}</ul><//>
        <${Panel} title="Downstream"><ul class="links">${readers.map((one) => html`<li key=${one.name}><a href=${to("operators", one.name)}>${one.name}</a></li>`)}${!readers.length && html`<li>subscribers</li>`}</ul><//>
      </div>
    </div>
    ${operator.queries.slice(0, MOST_TEXTS).map((one) => find("queries", one)).filter(Boolean).map((query) => html`<${Panel} key=${query.name} title=${`SQL of ${query.name}`}><${Sql} text=${query.sql} /><//>`)}
    <${TailPanel} address=${path("operators", name, "tap")} title="Live rows of its output" />
    <${LogOf} name=${name} />
    ${menu && html`<${Menu} ...${menu} close=${() => setMenu(null)} />`}`;
}
