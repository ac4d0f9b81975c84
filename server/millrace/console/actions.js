// Every change that the console can make, as data: the command of the command line and the API call that it is.
//
// An action has a title, a text, the item whose tag the change names (`item`), fields to fill in, and `make(values)`,
// which returns the call: {cli, method, path, body}. `plan` says that the route can make a dry run.

import { path, quoted } from "./api.js";

const STRATEGIES = ["dfs", "bfs", "rr", "chain"];
const QUEUES = ["append", "auto", "fifo", "inplace", "linecutting", "deadline"];

const command = (...words) => ["millrace", ...words.filter((word) => word !== null && word !== undefined).map(quoted)].join(" ");
const number = (text) => (text === "" || text === undefined ? undefined : Number(text));
const without = (body) => Object.fromEntries(Object.entries(body).filter(([, value]) => value !== undefined && value !== ""));

/** An action without fields. */
const plain = (title, text, item, cli, method, address, more = {}) => ({
  title, text, item, plan: true, fields: [], make: () => ({ cli, method, path: address }), ...more,
});

export const pauseQuery = (name) => ({
  title: `Pause ${name}`,
  text: "Until it is resumed, the query skips its input and counts the skipped tuples.",
  item: path("queries", name),
  plan: true,
  fields: [{ key: "reason", name: "Reason", value: "paused by an admin" }],
  make: ({ reason }) => ({
    cli: command("query", "pause", name, "--reason", reason),
    method: "POST", path: path("queries", name, "pause"), body: without({ reason }),
  }),
});

export const resumeQuery = (name) =>
  plain(`Resume ${name}`, "The query continues at the present end of its input. A failed query starts again.",
    path("queries", name), command("query", "resume", name), "POST", path("queries", name, "resume"));

export const dropQuery = (name) =>
  plain(`Drop ${name}`, "Its state and its retained rows are removed. An undo creates it again, with empty state.",
    path("queries", name), command("query", "drop", name), "DELETE", path("queries", name), { danger: true, gone: true });

export const renameQuery = (name) => ({
  title: `Rename ${name}`,
  text: "Sequence numbers continue, and subscribers stay connected.",
  item: path("queries", name),
  plan: true,
  fields: [{ key: "to", name: "New name", required: true }],
  make: ({ to }) => ({ cli: command("query", "rename", name, to || "NAME"), method: "POST", path: path("queries", name, "rename"), body: { to } }),
});

export const orderQuery = (name) => ({
  title: `Order of ${name}`,
  text: "How the query's joins order their rows. No pair is lost or repeated.",
  item: path("queries", name),
  plan: true,
  fields: [
    { key: "join", name: "Order", options: ["arrival", "sync", "filter", "adaptive"] },
    { key: "alpha", name: "alpha (adaptive)", type: "number" },
  ],
  make: ({ join, alpha }) => ({
    cli: command("query", "order", name, join, ...(alpha ? ["--alpha", alpha] : [])),
    method: "PUT", path: path("queries", name, "order"), body: without({ join, alpha: number(alpha) }),
  }),
});

export const unshareQuery = (name) =>
  plain(`Unshare ${name}`, "The query gets separate copies of the operators that it shares. No row is lost or repeated.",
    path("queries", name), command("query", "unshare", name), "POST", path("queries", name, "unshare"), {
      make: () => ({ cli: command("query", "unshare", name), method: "POST", path: path("queries", name, "unshare"), body: {} }),
    });

export const dropStream = (name) =>
  plain(`Drop ${name}`, "Only a stream that no query reads can be dropped.", path("streams", name),
    command("stream", "drop", name), "DELETE", path("streams", name), { danger: true, gone: true });

export const renameColumn = (name, columns) => ({
  title: `Rename a column of ${name}`,
  text: "Queries keep the names of their columns. Open feeds end and can open again.",
  item: path("streams", name),
  plan: true,
  fields: [{ key: "column", name: "Column", options: columns }, { key: "to", name: "New name", required: true }],
  make: ({ column, to }) => ({
    cli: command("stream", "rename-column", name, column, to || "NAME"),
    method: "POST", path: path("streams", name, "rename-column"), body: { column, to },
  }),
});

export const archiveStream = (name) =>
  plain(`Write the history of ${name}`, "All tuples received so far are written to complete files.", null,
    command("stream", "archive", name), "POST", path("streams", name, "archive"), { plan: false });

export const dropSink = (name) =>
  plain(`Drop ${name}`, "The sink finishes its file first.", path("sinks", name), command("sink", "drop", name),
    "DELETE", path("sinks", name), { danger: true, gone: true });

export const setStrategy = (component, strategy = "dfs", operator = null) => ({
  title: operator ? `Strategy of ${operator}` : `Strategy of ${component}`,
  text: "Which operator runs next. The table's rows are replaced between two steps; no tuple is lost.",
  item: path("components", component),
  plan: true,
  fields: [{ key: "strategy", name: "Strategy", options: [...new Set([...STRATEGIES, strategy])], value: strategy }],
  make: (values) => ({
    cli: command("strategy", "set", component, values.strategy, ...(operator ? ["--operator", operator] : [])),
    method: "PUT", path: path("components", component, "strategy"),
    body: without({ strategy: values.strategy, operator: operator ?? undefined }),
  }),
});

export const setWeight = (component, weight) => ({
  title: `Weight of ${component}`,
  text: "The component's share of the processor, relative to the other components.",
  item: path("components", component),
  plan: true,
  fields: [{ key: "weight", name: "Weight", type: "number", value: weight, required: true }],
  make: (values) => ({
    cli: command("component", "weight", component, String(values.weight)),
    method: "PUT", path: path("components", component, "weight"), body: { weight: number(values.weight) },
  }),
});

export const setBreak = (operator) =>
  plain(`Break point at ${operator}`, "The path is divided at the operator's output: what follows becomes a fragment with its own turns.",
    path("operators", operator), command("break", "set", operator), "PUT", path("operators", operator, "break"));

export const unsetBreak = (operator) =>
  plain(`Unset the break point at ${operator}`, "The two fragments become one path again.",
    path("operators", operator), command("break", "unset", operator), "DELETE", path("operators", operator, "break"));

const inputs = (operator) =>
  operator.inputs.length > 1
    ? [{ key: "input", name: "Input", options: operator.inputs.map((one, index) => [String(index), `${index}: ${one.from}`]) }]
    : [];

export const setQueue = (operator) => ({
  title: `Queue of ${operator.name}`,
  text: "append keeps all rows, the others the newest row of each key. auto supersedes rows only under overload.",
  item: path("operators", operator.name),
  plan: true,
  fields: [{ key: "kind", name: "Kind", options: QUEUES, value: operator.queues?.[0] ?? "append" }, ...inputs(operator)],
  make: ({ kind, input }) => ({
    cli: command("operator", "queue", operator.name, kind, ...(input ? ["--input", input] : [])),
    method: "PUT", path: path("operators", operator.name, "queue"), body: without({ kind, input: number(input) }),
  }),
});

const edited = (where, sample) => without({ where, sample: number(sample) });
const words = (where, sample) => [...(where ? ["--where", where] : []), ...(sample ? ["--sample", String(sample)] : [])];

export const insertOperator = (operator, kind = "where") => ({
  title: kind === "sample" ? `Sample in front of ${operator.name}` : `Filter in front of ${operator.name}`,
  text: "Tuples that are queued at the input stay there; later tuples go through the new operator, until the query is replaced.",
  item: path("operators", operator.name),
  plan: true,
  fields: [
    kind === "sample"
      ? { key: "sample", name: "Share of rows that pass", type: "number", value: "0.1", required: true }
      : { key: "where", name: "Condition, as after WHERE", required: true },
    ...inputs(operator),
  ],
  make: ({ where, sample, input }) => ({
    cli: command("operator", "insert", operator.name, ...words(where, sample), ...(input ? ["--input", input] : [])),
    method: "POST", path: path("operators", operator.name, "insert"), body: without({ ...edited(where, sample), input: number(input) }),
  }),
});

export const replaceOperator = (operator) => ({
  title: `Change ${operator.name}`,
  text: "Which rows the operator keeps, until its query is replaced.",
  item: path("operators", operator.name),
  plan: true,
  fields: [
    operator.sample === null
      ? { key: "where", name: "Condition, as after WHERE", value: operator.where ?? "", required: true }
      : { key: "sample", name: "Share of rows that pass", type: "number", value: operator.sample, required: true },
  ],
  make: ({ where, sample }) => ({
    cli: command("operator", "replace", operator.name, ...words(where, sample)),
    method: "PUT", path: path("operators", operator.name), body: edited(where, sample),
  }),
});

export const removeOperator = (operator) =>
  plain(`Remove ${operator}`, "Its queued tuples pass. The query has it again when it is replaced.",
    path("operators", operator), command("operator", "remove", operator), "DELETE", path("operators", operator), { danger: true, gone: true });

export const runSql = (sql, title = "Execute SQL") => ({
  title,
  text: "All statements are planned first, and then applied as one change, or not at all.",
  item: null,
  sql: true,
  plan: true,
  fields: [{ key: "sql", name: "SQL", type: "area", value: sql, required: true }],
  make: (values) => ({
    cli: command("sql", values.sql),
    method: "POST", path: path("sql"), body: { sql: values.sql, idempotent: true },
  }),
});

export const undoChange = (change) => ({
  title: `Undo change ${change.number}`,
  text: change.lost ? `Undo: ${change.text}. It does not bring back everything: ${change.lost}` : `Undo: ${change.text}.`,
  item: null,
  plan: "body",
  fields: [],
  make: () => ({ cli: command("undo", String(change.number)), method: "POST", path: path("changes", "undo"), body: { number: change.number } }),
});

/** The action of a command that the server advises, or null if it only reads. */
export function actionOf(text) {
  const [program, group, verb, ...rest] = split(text);
  if (program !== "millrace") return null;
  const [name, value] = rest;
  switch (`${group} ${verb}`) {
    case "query resume": return resumeQuery(name);
    case "query pause": return pauseQuery(name);
    case "query drop": return dropQuery(name);
    case "sink drop": return dropSink(name);
    case "strategy set": return setStrategy(name, value);
    case "break unset": return unsetBreak(name);
    case "break set": return setBreak(name);
    case "operator remove": return removeOperator(name);
    case "operator queue": return setQueue({ name, inputs: [], queues: [value] });
    default: return group === "sql" && verb && !/^\s*(show|describe|explain|select)/i.test(verb) ? runSql(verb) : null;
  }
}

/** The words of a shell's command, with quotes removed. */
export function split(text) {
  return [...String(text ?? "").matchAll(/'([^']*)'|"((?:[^"\\]|\\.)*)"|(\S+)/g)].map(([, one, two, three]) => one ?? two?.replace(/\\(.)/g, "$1") ?? three);
}
