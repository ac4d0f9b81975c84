// What the query in the editor would emit of the newest tuples of its streams.
//
// Rule: the server keeps tuples for a preview only while one is shown, so each answer is made of more tuples than the one
// before. A preview that takes long is made less often.

import { html, useEffect, useState } from "./vendor/console.js";
import { call, path } from "./api.js";
import { bytes, cell, clock, count, counted, span } from "./format.js";
import { Button, Empty, Failure, Panel, State } from "./kit.js";

const ROWS = 50;
const EVERY_MS = 2000;
const SHARE = 10; // the server works on a preview for at most this part of the time
const NUMBERS = new Set(["bigint", "double"]);

/** The body of a preview, also as a person would send it. */
export const previewOf = (sql) => ({ method: "POST", path: path("sql", "preview"), body: { sql, rows: ROWS } });

export function PreviewPanel({ sql, ready, take }) {
  const [on, setOn] = useState(true);
  const [answer, setAnswer] = useState(null);
  const [error, setError] = useState(null);
  useEffect(() => {
    if (!on || !ready) return undefined;
    const stop = new AbortController();
    repeat(sql, stop.signal, (data) => (setAnswer(data), setError(null), take(data)), setError);
    return () => stop.abort();
  }, [sql, on, ready]);
  const problem = error ?? (answer?.problem && { message: answer.problem.detail });
  const shown = answer && !answer.problem ? answer : null;
  const tools = html`<${State} word=${on ? (ready ? "live" : "waiting") : "paused"} level=${on ? (ready ? "good" : "idle") : "warn"} />
    <${Button} pressed=${!on} onClick=${() => setOn(!on)}>${on ? "Pause" : "Resume"}<//>`;
  return html`<${Panel} title="Preview" tools=${tools} className="preview" id="preview">
    ${ready && html`<${Failure} error=${problem} />`}
    ${shown ? html`<${Shown} answer=${shown} stale=${!ready} />` : html`<${Empty}>${ready ? (problem ? "" : "Waiting for tuples…") : "There is no preview until the text is right and defines a query."}<//>`}
  <//>`;
}

/** Ask again and again, until it is stopped. */
async function repeat(sql, signal, take, fail) {
  for (let wait = 1; !signal.aborted; wait = 0) {
    const began = performance.now();
    if (document.visibilityState === "visible") {
      try {
        const { data } = await call("POST", path("sql", "preview"), { body: { sql, rows: ROWS, wait }, signal });
        if (signal.aborted) return;
        take(data);
        if (data.problem) return;
      } catch (problem) {
        if (problem.name === "AbortError") return;
        fail(problem);
      }
    }
    const took = performance.now() - began - wait * 1000;
    await new Promise((done) => setTimeout(done, Math.max(EVERY_MS, took * SHARE)));
  }
}

function Shown({ answer, stale }) {
  const { rows, columns, inputs } = answer;
  const final = answer.emitted - answer.open;
  const tuples = inputs.map(({ stream, tuples: number, first_us: first, last_us: last }) => (number
    ? `the newest ${counted(number, "tuple")} of ${stream} (${clock(first, null, 0)} to ${clock(last, null, 0)})` : `no tuple of ${stream} since the preview started`));
  return html`
    <p>${counted(answer.emitted, "row")}, made of ${tuples.join(" and ") || "nothing"}.
      ${answer.open > 0 && html` The last ${count(answer.open)} would still wait for later tuples.`}
      ${stale && html` <span class="muted">This was the text before.</span>`}</p>
    ${answer.cut && html`<p class="warning">The preview ended early: ${answer.cut}.</p>`}
    ${answer.failed > 0 && html`<p class="failure" role="alert">${counted(answer.failed, "row")} could not be computed: ${answer.reason}</p>`}
    ${rows.length > 0 && html`<div class="scroll" tabindex="0" role="group" aria-label="Rows of the preview"><table class="rows">
      <thead><tr><th scope="col" class="number">#</th>${columns.map(({ name, type }) => html`<th key=${name} scope="col" class=${NUMBERS.has(type) ? "number" : ""} title=${type}>${name}</th>`)}</tr></thead>
      <tbody>${[...rows].reverse().map(({ n, row }) => html`<tr key=${n}><td class="number muted">${n}${n > final ? html` waits` : ""}</td>
        ${columns.map(({ name, type }) => html`<td key=${name} class=${`${NUMBERS.has(type) ? "number" : ""} ${row[name] === null || row[name] === undefined ? "muted" : ""}`}>${cell(row[name])}</td>`)}</tr>`)}</tbody>
    </table></div>`}`;
}

/** What the query costs, as far as a preview has measured it. */
export function Price({ preview }) {
  const price = preview?.price;
  if (!price || price.us_per_tuple === null) return null;
  return html`<p class="price"><strong>Price:</strong> ${span(price.us_per_tuple)} of the processor per tuple, ${counted(price.state_tuples, "tuple")} (${bytes(price.state_bytes)}) in state, measured on ${counted(price.tuples, "tuple")}.</p>`;
}
