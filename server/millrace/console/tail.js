// Live rows of a query, a stream, or an operator's output.
//
// Rule: the server sends no more rows than fit on the page, and says how many it has left out, so fifty thousand rows a
// second cost the browser as much as fifty.

import { html, useEffect, useMemo, useRef, useState } from "./vendor/console.js";
import { Problem, lines } from "./api.js";
import { cell, clock, count } from "./format.js";
import { Button, Empty, Panel, State } from "./kit.js";

const ROW_PIXELS = 26;
const EVERY = 0.25;
const NUMBERS = new Set(["bigint", "double", "integer", "int"]);

/** Follow a tail while it is shown: calls `take` with each line, and returns the problem that ended it. */
export function useTail(address, options, take, paused = false) {
  const [problem, setProblem] = useState(null);
  const query = new URLSearchParams(Object.entries(options).filter(([, value]) => value !== "")).toString();
  useEffect(() => {
    setProblem(null);
    if (paused) return undefined;
    let stop = null;
    const follow = async () => {
      stop = new AbortController();
      for (;;) {
        try {
          for await (const line of lines(`${address}?${query}`, stop.signal)) {
            if (line.end === "gone") return setProblem(new Problem(404, { detail: "It does not exist any more." }));
            if (!line.end) {
              take(line);
              setProblem(null);
            }
          }
          setProblem(new Problem(0, { detail: "The server ended the rows. Connecting again…" }));
        } catch (error) {
          if (error.name === "AbortError") return;
          setProblem(error);
          if (error.status >= 400 && error.status < 500) return;
        }
        await new Promise((done) => setTimeout(done, 1500));
        if (stop.signal.aborted) return;
      }
    };
    const seen = () => (document.visibilityState === "hidden" ? stop?.abort() : follow());
    document.addEventListener("visibilitychange", seen);
    follow();
    return () => {
      document.removeEventListener("visibilitychange", seen);
      stop?.abort();
    };
  }, [address, query, paused]);
  return problem;
}

export function TailPanel({ address, title, rows: wanted, plain = false }) {
  const room = useMemo(() => wanted ?? Math.max(8, Math.min(60, Math.floor((innerHeight - 300) / ROW_PIXELS))), [wanted]);
  const [paused, setPaused] = useState(false);
  const [follow, setFollow] = useState(true);
  const [condition, setCondition] = useState("");
  const [where, setWhere] = useState("");
  const [, paint] = useState(0);
  const kept = useRef({ rows: [], columns: null, skipped: 0, received: 0, after: 0, filtered: 0 });
  useEffect(() => {
    kept.current = { rows: [], columns: null, skipped: 0, received: 0, after: 0, filtered: 0 };
  }, [address, where]);

  const problem = useTail(address, { from: "latest", limit: room, every: EVERY, where }, (line) => {
    const tail = kept.current;
    if (line.columns) tail.columns = line.columns;
    const fresh = line.rows ?? [];
    tail.skipped += line.skipped ?? 0;
    tail.received += fresh.length + (line.skipped ?? 0);
    tail.filtered += line.filtered ?? 0;
    if (follow) {
      tail.skipped += Math.max(0, fresh.length - room);
      tail.rows = [...fresh.slice(-room).reverse(), ...tail.rows].slice(0, room);
    } else {
      tail.after += fresh.length + (line.skipped ?? 0);
    }
    paint((turn) => turn + 1);
  }, paused);

  const { rows, columns, skipped, received, after, filtered } = kept.current;
  const resume = () => {
    kept.current.skipped += kept.current.after;
    kept.current.after = 0;
    setFollow(!follow);
  };
  const filter = (event) => {
    event.preventDefault();
    setWhere(condition.trim());
  };
  const tools = html`<${State} word=${paused ? "paused" : problem ? "stopped" : "live"} level=${paused ? "warn" : problem ? "bad" : "good"} />
    <${Button} pressed=${paused} onClick=${() => setPaused(!paused)}>${paused ? "Resume" : "Pause"}<//>
    ${!plain && html`<${Button} pressed=${follow} title="Newest rows first, as they arrive" onClick=${resume}>Follow<//>
    <form class="inline" onSubmit=${filter}><label class="inline">Where <input type="search" value=${condition} placeholder="a condition" spellcheck="false"
      onInput=${(event) => setCondition(event.target.value)} onSearch=${filter} /></label><${Button} type="submit">Filter<//></form>`}`;
  return html`<${Panel} title=${title} tools=${tools} className="tail">
    ${problem && html`<p class="failure" role="alert">${problem.message}</p>`}
    ${rows.length && columns ? html`<div class="scroll" tabindex="0" role="group" aria-label=${title}><table class="rows">
      <thead><tr>${!plain && html`<th scope="col" class="number">#</th><th scope="col">received</th>`}${columns.map(({ name, type }) => html`<th key=${name} scope="col" class=${NUMBERS.has(type) ? "number" : ""} title=${type}>${name}</th>`)}</tr></thead>
      <tbody>${rows.map((one) => html`<tr key=${one.n}>${!plain && html`<td class="number muted">${one.n}</td><td class="muted">${clock(one.at_us, null)}</td>`}
        ${columns.map(({ name, type }) => html`<td key=${name} title=${typeof one.row[name] === "number" ? String(one.row[name]) : undefined} class=${`${NUMBERS.has(type) ? "number" : ""} ${one.row[name] === null || one.row[name] === undefined ? "muted" : ""}`}>${cell(one.row[name])}</td>`)}</tr>`)}</tbody>
    </table></div>` : html`<${Empty}>${problem ? "" : "Waiting for the next row."}<//>`}
    <p class="muted" aria-live="off">${count(received)} rows since this page was opened, ${count(skipped)} of them not shown${filtered ? `, ${count(filtered)} more did not match` : ""}${after ? `; ${count(after)} since you stopped to follow` : ""}.</p>
  <//>`;
}
