// The newest log lines of the server: all, or those that name an object.

import { html } from "./vendor/console.js";
import { get, path } from "./api.js";
import { may } from "./state.js";
import { choose, chosen, Empty, Failure, Panel, State, Table, useAnswer, useCall } from "./kit.js";

const LEVELS = { debug: "idle", info: "good", warning: "warn", error: "bad", critical: "bad" };
const HEAD = new Set(["event", "level", "timestamp"]);

const COLUMNS = [
  { key: "time", name: "Time", of: (line) => line.timestamp, show: (line) => html`<time>${line.timestamp.slice(11, 23)}</time>` },
  { key: "level", name: "Level", of: (line) => line.level, show: (line) => html`<${State} word=${line.level} level=${LEVELS[line.level] ?? "idle"} />` },
  { key: "event", name: "Event", of: (line) => line.event, show: (line) => line.event },
  { key: "rest", name: "Details", wide: true, show: (line) => html`<code>${Object.entries(line).filter(([key]) => !HEAD.has(key)).map(([key, value]) => `${key}=${value}`).join(" ")}</code>` },
];

const LogTable = ({ label, lines, empty }) => html`<${Table} id="log" label=${label} columns=${COLUMNS} rows=${lines} rowKey=${(line, index) => `${line.timestamp}-${index}`} empty=${empty} />`;

export function LogPage() {
  useCall("millrace support-bundle", "/api/v1/log");
  return may("operate") ? html`<${AllLines} />` : html`<h1>Log</h1><${Empty}>The log needs a token with the role operate.<//>`;
}

function AllLines() {
  const { data, error } = useAnswer(() => get(path("log")), [], 3);
  const [words, level] = [chosen("words").toLowerCase(), chosen("level")];
  const found = (data ?? []).filter((line) => (!level || line.level === level) && (!words || JSON.stringify(line).toLowerCase().includes(words))).reverse();
  return html`<header class="head"><h1>Log</h1><div class="tools">
      <label class="inline">Level <select value=${level} onChange=${choose("level")}>${["", ...Object.keys(LEVELS)].map((one) => html`<option key=${one} value=${one}>${one || "all"}</option>`)}</select></label>
      <label class="inline">Words <input type="search" value=${chosen("words")} onInput=${choose("words")} /></label>
    </div></header>
    <${Failure} error=${error} />
    <${Panel}><${LogTable} label="Log lines" lines=${found} empty=${data ? "No such lines." : "Reading…"} /><//>`;
}

/** The log lines that name an object. */
export function LogOf({ name }) {
  return may("operate") ? html`<${LinesOf} name=${name} />` : null; // lines can have secrets of any object
}

function LinesOf({ name }) {
  const { data } = useAnswer(() => get(`${path("log")}?about=${encodeURIComponent(name)}`), [name], 10);
  const lines = data ?? [];
  return html`<${Panel} title="Log">${lines.length ? html`<${LogTable} label=${`Log lines about ${name}`} lines=${lines.slice(-20).reverse()} />` : html`<${Empty}>No log line names ${name}.<//>`}<//>`;
}
