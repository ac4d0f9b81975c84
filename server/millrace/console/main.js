// The console: one document, whose pages are the parts after "#/".

import { html, render } from "./vendor/console.js";
import { ChangesPage } from "./changes.js";
import { ComponentPage, ComponentsPage } from "./components.js";
import { EditorPage } from "./editorpage.js";
import { GraphPage } from "./graph.js";
import { HistoryPage } from "./history.js";
import { LogPage } from "./log.js";
import { OperatorPage } from "./operator.js";
import { Overview } from "./overview.js";
import { QueriesPage, QueryPage } from "./queries.js";
import { Shell } from "./shell.js";
import { SinkPage, SinksPage } from "./sinks.js";
import { StreamPage, StreamsPage } from "./streams.js";
import { route, startRouter } from "./router.js";
import { start } from "./state.js";

// The page of an address: of a list, or of the object that is named after it.
const PAGES = {
  graph: ([name]) => html`<${GraphPage} name=${name} />`,
  queries: ([name, part]) => (name ? html`<${QueryPage} key=${name} name=${name} part=${part} />` : html`<${QueriesPage} />`),
  streams: ([name, part]) => (name ? html`<${StreamPage} key=${name} name=${name} part=${part} />` : html`<${StreamsPage} />`),
  sinks: ([name]) => (name ? html`<${SinkPage} key=${name} name=${name} />` : html`<${SinksPage} />`),
  components: ([name, part]) => (name ? html`<${ComponentPage} key=${name} name=${name} part=${part} />` : html`<${ComponentsPage} />`),
  operators: ([name]) => html`<${OperatorPage} key=${name} name=${name} />`,
  editor: ([name]) => html`<${EditorPage} key=${name ?? ""} name=${name} />`,
  history: () => html`<${HistoryPage} />`,
  changes: () => html`<${ChangesPage} />`,
  log: () => html`<${LogPage} />`,
};

const App = () => {
  const [page, ...rest] = route.value.parts;
  return html`<${Shell} page=${page ?? "overview"}>${(PAGES[page] ?? (() => html`<${Overview} />`))(rest)}<//>`;
};

startRouter();
start();
render(html`<${App} />`, document.getElementById("app"));
