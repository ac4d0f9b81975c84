// History: archives of streams, and queries that start with their past.

import { html } from "./vendor/console.js";
import { bytes, clock, count, iso, percent, span } from "./format.js";
import { Panel, State, Table, useCall } from "./kit.js";
import { to } from "./router.js";
import { all, world } from "./state.js";

const stateOf = (backfill) => ({
  word: backfill.phase || backfill.state,
  level: backfill.state === "failed" ? "bad" : backfill.history_done ? "good" : "warn",
});
const share = (backfill) => (backfill.history_done ? 1 : backfill.of ? Math.min(1, backfill.rows / backfill.of) : 0);

const BACKFILLS = [
  { key: "query", name: "Query", of: (row) => row.query, show: (row) => html`<a href=${to("queries", row.query)}>${row.query}</a>` },
  { key: "state", name: "State", of: (row) => row.state, show: (row) => html`<${State} ...${stateOf(row)} title=${row.reason ?? ""} />` },
  { key: "bar", name: "Progress", wide: true, of: share, show: (row) => html`<progress max="1" value=${share(row)} aria-label=${`progress of ${row.query}`}></progress> ${percent(share(row))}` },
  { key: "rows", name: "Rows", number: true, of: (row) => row.rows, show: (row) => `${count(row.rows)}${row.of ? ` of ${count(row.of)}` : ""}` },
  { key: "seam", name: "Seam", number: true, of: (row) => row.seam_us, show: (row) => html`<span title=${iso(row.seam_us)}>${clock(row.seam_us, world.value.at_us, 0)}</span>` },
  { key: "history", name: "History reaches", number: true, of: (row) => row.history_us, show: (row) => clock(row.history_us, world.value.at_us, 0) },
  { key: "out", name: "Files", show: (row) => html`<code>${row.out ?? "–"}</code>` },
];

const ARCHIVES = [
  { key: "name", name: "Stream", of: (row) => row.name, show: (row) => html`<a href=${to("streams", row.name)}>${row.name}</a>` },
  { key: "state", name: "State", of: (row) => row.archive.error, show: (row) => html`<${State} word=${row.archive.error ? "failing" : row.archive.held ? "held" : "writing"} level=${row.archive.error ? "bad" : row.archive.held ? "warn" : "good"} title=${row.archive.error ?? ""} />` },
  { key: "rows", name: "Rows", number: true, of: (row) => row.archive.rows, show: (row) => count(row.archive.rows) },
  { key: "late", name: "Late rows", number: true, of: (row) => row.archive.late_rows, show: (row) => count(row.archive.late_rows) },
  { key: "files", name: "Files", number: true, of: (row) => row.archive.files, show: (row) => count(row.archive.files) },
  { key: "bytes", name: "Size", number: true, of: (row) => row.archive.bytes, show: (row) => bytes(row.archive.bytes) },
  { key: "waiting", name: "Not written yet", number: true, of: (row) => row.archive.waiting_rows, show: (row) => count(row.archive.waiting_rows) },
  { key: "lag", name: "Lag", number: true, of: (row) => row.archive.lag_us, show: (row) => span(row.archive.lag_us) },
  { key: "gaps", name: "Gaps", number: true, of: (row) => row.archive.gaps.length, show: (row) => html`<span class=${row.archive.gaps.length ? "bad" : ""}>${count(row.archive.gaps.length)}</span>` },
];

export function HistoryPage() {
  useCall("millrace backfill status", "/api/v1/queries");
  const { server } = world.value;
  const journal = server.journal;
  return html`<header class="head"><h1>History</h1></header>
    <${Panel} title="Backfills"><${Table} id="backfills" label="Backfills" columns=${BACKFILLS} rows=${all("queries").map(({ backfill }) => backfill).filter(Boolean)} empty="No query starts with its history. millrace backfill start makes one." /><//>
    <${Panel} title="Archives"><${Table} id="archives" label="Archives" columns=${ARCHIVES} rows=${all("streams").filter(({ archive }) => archive)} empty="No stream has a history: CREATE STREAM ... WITH (history = true)." /><//>
    ${journal && html`<${Panel} title="Journal"><dl class="facts">
      <dt>records</dt><dd>${count(journal.oldest_lsn)} to ${count(journal.newest_lsn)}, ${bytes(journal.disk_bytes)} on disk, sync ${journal.sync}</dd>
      <dt>checkpoint</dt><dd>${clock(journal.checkpoint.at_us, world.value.at_us, 0)}, ${bytes(journal.checkpoint.bytes)}; ${count(journal.checkpoint.steps_since)} steps since</dd>
      <dt>past</dt><dd>${journal.past.from_us ? `from ${iso(journal.past.from_us)}` : "none"} (keep ${journal.past.keep}): millrace replay runs it again</dd>
      <dt>standbys</dt><dd>${server.standbys.length ? server.standbys.map((one) => `${one.peer} (${one.lag_steps} steps behind)`).join(", ") : "none"}</dd>
    </dl><//>`}`;
}
