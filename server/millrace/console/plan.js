// What a change would do: the answer to a dry run, and the difference between two versions of an item.

import { html } from "./vendor/console.js";
import { bytes, counted, span } from "./format.js";
import { all, find } from "./state.js";

const WORDS = { appears: "new", goes: "removed", changes: "changes", stays: "stays" };

/** The parts of a plan that are not as before. */
export function Plan({ plan }) {
  const queries = plan.queries.filter((query) => query.change !== "stays");
  const shared = queries.flatMap((query) => query.shared);
  const notes = [
    ...plan.streams.filter(({ change }) => change !== "stays").map(({ name, change }) => `stream ${name}: ${WORDS[change]}`),
    ...plan.merges.map(({ component, parts }) => `components ${parts.join(" and ")} merge into ${component}`),
    ...plan.splits.map(({ component, parts }) => `component ${component} splits into ${parts.join(" and ")}`),
  ];
  const rows = plan.table.before.length + plan.table.after.length;
  if (!queries.length && !notes.length && !rows) return html`<p class="plan-none">Plan: nothing changes.</p>`;
  return html`<section class="plan" aria-label="Plan">
    <h3>Plan</h3>
    ${notes.map((note) => html`<p key=${note}>${note}</p>`)}
    ${queries.map((query) => html`<${QueryPlan} key=${query.name} query=${query} />`)}
    ${shared.length > 0 && html`<p>Shared operators: ${shared.map((one) => `${one.operator} with ${one.with.join(", ")}`).join("; ")}</p>`}
    ${rows > 0 && html`<details open=${rows < 13}><summary>${counted(rows, "row")} of the state table</summary><${Rows} table=${plan.table} /></details>`}
  </section>`;
}

const STATES = { kept: "state kept", forgotten: "state is lost", "begins empty": "starts empty" };

function QueryPlan({ query }) {
  const operators = query.operators.filter(({ change, state }) => change !== "stays" || state === "forgotten");
  return html`<div class="query-plan">
    <p><strong>${query.was && query.was !== query.name ? `${query.was} → ${query.name}` : query.name}</strong> <span class=${`mark is-${query.change}`}>${WORDS[query.change]}</span></p>
    ${operators.length > 0 && html`<ul>${operators.map((one) => html`<li key=${one.operator}>
      <code>${one.operator}</code> ${one.kind} <span class=${`mark is-${one.change}`}>${WORDS[one.change]}</span>
      ${one.state && html`<span class=${one.state === "forgotten" ? "warning" : "muted"}> ${STATES[one.state]}${one.state_tuples ? ` (${counted(one.state_tuples, "tuple")}${sizeOf(one)})` : ""}</span>`}
      <${Cost} operator=${one} />
    </li>`)}</ul>`}
  </div>`;
}

/** The operator as it runs now, if it does. */
const running = ({ change, was, operator }) => (change === "appears" ? null : find("operators", was ?? operator));

function sizeOf(operator) {
  const size = running(operator)?.state_bytes;
  return size ? `, ${bytes(size)}` : "";
}

/** What its tuples have cost, or those of other operators of its kind; nothing if none has been measured. */
function Cost({ operator }) {
  const own = running(operator);
  const measured = (own ? [own] : all("operators").filter(({ kind }) => kind === operator.kind)).filter(({ busy_us: busy, input_tuples: tuples }) => busy && tuples);
  const sum = (of) => measured.reduce((total, one) => total + of(one), 0);
  const tuples = sum((one) => one.input_tuples);
  if (!tuples) return null;
  return html`<span class="muted">${own ? " · " : " · others of its kind: "}${span(sum((one) => one.busy_us) / tuples)} per tuple, measured on ${counted(tuples, "tuple")}</span>`;
}

/** The rows of the state table before and after, as the papers print them. */
export function Rows({ table }) {
  const by = (rows) => new Map(rows.map((row) => [row.state, row]));
  const [before, after] = [by(table.before), by(table.after)];
  const names = [...new Set([...before.keys(), ...after.keys()])];
  const cells = (row, other) => ["pred", "succ", "transition"].map((key) => {
    const text = row ? [].concat(row[key]).join(", ") : "";
    return html`<td key=${key} class=${row && other && text !== [].concat(other[key]).join(", ") ? "differs" : ""}>${text || "–"}</td>`;
  });
  return html`<div class="scroll" tabindex="0" role="group" aria-label="Rows that change"><table class="table-diff">
    <thead><tr><th scope="col">state</th><th scope="col"></th><th scope="col">pred</th><th scope="col">succ</th><th scope="col">transition</th></tr></thead>
    <tbody>${names.flatMap((name) => [
      before.has(name) && html`<tr key=${`${name}-`} class="minus"><td>${name}</td><td>−</td>${cells(before.get(name), after.get(name))}</tr>`,
      after.has(name) && html`<tr key=${`${name}+`} class="plus"><td>${name}</td><td>+</td>${cells(after.get(name), before.get(name))}</tr>`,
    ])}</tbody>
  </table></div>`;
}

// The fields of an item that its tag covers; counters always differ.
const SETTINGS = ["sql", "state", "reason", "order", "joins", "auto", "strategy", "strategies", "weight", "breaks", "break", "queues", "where", "sample", "fields"];

/** The lines of the settings that differ between two versions of an item. */
export function Difference({ before, after }) {
  const text = (item) => SETTINGS.filter((key) => item && key in item)
    .flatMap((key) => (typeof item[key] === "string" ? item[key].split("\n") : JSON.stringify(item[key], null, 1)?.split("\n") ?? []).map((line) => `${key}: ${line}`));
  return html`<${Lines} lines=${compared(text(before), text(after)).filter(([sign]) => sign !== " ")} />`;
}

export const Lines = ({ lines }) => html`<pre class="difference" tabindex="0" aria-label="Difference">${lines.map(([sign, line], index) => html`
  <span key=${index} class=${sign === "+" ? "plus" : sign === "-" ? "minus" : ""}>${`${sign} ${line}\n`}</span>`)}</pre>`;

/** A comparison of two texts by lines: [" ", line], ["-", line] or ["+", line]. */
export function compared(before, after) {
  const [rows, columns] = [before.length, after.length];
  const longest = Array.from({ length: rows + 1 }, () => new Uint32Array(columns + 1));
  for (let row = rows - 1; row >= 0; row--) {
    for (let column = columns - 1; column >= 0; column--) {
      longest[row][column] = before[row] === after[column] ? longest[row + 1][column + 1] + 1 : Math.max(longest[row + 1][column], longest[row][column + 1]);
    }
  }
  const lines = [];
  let [row, column] = [0, 0];
  while (row < rows || column < columns) {
    if (row < rows && column < columns && before[row] === after[column]) {
      lines.push([" ", before[row++]]);
      column += 1;
    } else if (column === columns || (row < rows && longest[row + 1][column] >= longest[row][column + 1])) {
      lines.push(["-", before[row++]]);
    } else {
      lines.push(["+", after[column++]]);
    }
  }
  return lines;
}
