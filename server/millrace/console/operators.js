// Operators in a list: of a query, or of a component.

import { html } from "./vendor/console.js";
import { NONE, bytes, count, percent, rate, span } from "./format.js";
import { State, Table } from "./kit.js";
import { to } from "./router.js";
import { queued, speed, stateOfOperator } from "./state.js";

/** Microseconds for each tuple of the last second, or of the whole life if there was none. */
export function cost(operator) {
  const [busy, tuples] = [speed(operator, "busy_us"), speed(operator, "input_tuples")];
  if (busy && tuples) return busy / tuples;
  return operator.input_tuples && operator.busy_us ? operator.busy_us / operator.input_tuples : null;
}

const COLUMNS = [
  { key: "name", name: "Operator", of: (row) => row.name, show: (row) => html`<a href=${to("operators", row.name)}>${row.name}</a>` },
  { key: "kind", name: "Kind", of: (row) => row.kind, show: (row) => row.kind },
  { key: "state", name: "State", of: (row) => stateOfOperator(row).word, show: (row) => html`<${State} ...${stateOfOperator(row)} title=${row.last_error ?? ""} />` },
  { key: "in", name: "In", number: true, of: (row) => speed(row, "input_tuples"), show: (row) => rate(speed(row, "input_tuples")) },
  { key: "out", name: "Out", number: true, of: (row) => speed(row, "output_tuples"), show: (row) => rate(speed(row, "output_tuples")) },
  { key: "cost", name: "Cost", number: true, of: cost, show: (row) => span(cost(row)) },
  { key: "busy", name: "Busy", number: true, of: (row) => speed(row, "busy_us"), show: (row) => percent(speed(row, "busy_us") === null ? null : speed(row, "busy_us") / 1e6) },
  { key: "queue", name: "Queued", number: true, of: queued, show: (row) => count(queued(row)) },
  { key: "held", name: "Tuples held", number: true, of: (row) => row.state_tuples, show: (row) => (row.state_tuples ? `${count(row.state_tuples)} (${bytes(row.state_bytes)})` : "0") },
  { key: "strategy", name: "Strategy", of: (row) => row.strategy, show: (row) => row.strategy ?? NONE },
  { key: "errors", name: "Errors", number: true, of: (row) => row.errors, show: (row) => html`<span class=${row.errors ? "bad" : ""}>${count(row.errors)}</span>` },
];

export const OperatorTable = ({ operators }) => html`<${Table} id="operators" label="Operators" columns=${COLUMNS} rows=${operators} />`;
