// What the server is doing now, from one stream of events: `/api/v1/events`. Every page reads these signals.
//
// Rule: the first line has everything, later ones only the fields that changed. A connection that ends is made again, and
// the page says so until it is back. Rates are differences between two lines, by the server's clock.

import { computed, signal } from "./vendor/console.js";
import { Problem, call, lines, path } from "./api.js";

const KINDS = ["streams", "queries", "sinks", "components", "operators"];
// The counters of each kind of which a rate is shown.
const COUNTERS = {
  streams: ["tuples", "late"],
  queries: ["rows"],
  sinks: ["delivered"],
  components: ["steps"],
  operators: ["input_tuples", "output_tuples", "busy_us", "executions"],
};
const HISTORY = 60; // rates kept for the small charts
const SMOOTH = 5; // rates of which the mean is shown: a window's rows come all at once
const RETRY_MS = [500, 1000, 2000, 5000];
// An operator that has been blocked for less than this works normally: it waits for the next tuple of an input.
const WAITING_US = 1.5e6;

const empty = () => Object.fromEntries(KINDS.map((kind) => [kind, new Map()]));

/** `connecting`, `live`, `lost` (with `since` and `text`), or `login`. */
export const connection = signal({ state: "connecting" });
/** The objects by kind and name. A new object for each line: whoever reads it is drawn again. */
export const world = signal({ at_us: 0, server: null, health: null, changes: 0, ...empty() });
/** The newest change, to be shown for a while. */
export const newestChange = signal(null);
export const session = signal(null);

export const all = (kind) => [...world.value[kind].values()];
export const find = (kind, name) => world.value[kind].get(name);
// The roles that include another one: whoever may change may operate.
const INCLUDED_IN = { read: ["read", "operate", "change", "admin"], operate: ["operate", "change", "admin"], change: ["change", "admin"] };
/** Whether the server may allow it: a role can be limited to some objects, as `change:board` is. */
export const may = (role) => (session.value?.roles ?? ["admin"]).some((one) => INCLUDED_IN[role].includes(one.split(":")[0]));

/** Whether the token is for some objects only: it does not see components and operators, which belong to several. */
export const limited = () => Boolean(session.value?.roles.length) && session.value.roles.every((one) => one.includes(":"));

/** How fast a counter grows, a second; null until two lines have it. */
export const speed = (item, counter) => item?.speeds?.[counter] ?? null;

let stop = null;

export function start() {
  stop?.abort();
  stop = new AbortController();
  follow(stop.signal);
}

// A browser opens few connections to one server, over all tabs: those that nobody sees leave theirs to the others.
document.addEventListener("visibilitychange", () => {
  if (document.visibilityState === "hidden") stop?.abort();
  else if (connection.value.state !== "login") start();
});

async function follow(aborted) {
  let failures = 0;
  while (!aborted.aborted) {
    try {
      session.value = (await call("GET", path("console", "session"), { signal: aborted })).data;
      if (!session.value.roles.length) {
        connection.value = { state: "login" };
        return;
      }
      for await (const line of lines(`${path("events")}?interval=1`, aborted)) {
        failures = 0;
        take(line);
      }
      lost("The server closed the connection.");
    } catch (error) {
      if (error.name === "AbortError") return;
      if (error instanceof Problem && error.status === 401) {
        connection.value = { state: "login" };
        return;
      }
      lost(error.message);
    }
    const wait = RETRY_MS[Math.min(failures++, RETRY_MS.length - 1)];
    await new Promise((done) => setTimeout(done, wait));
  }
}

function lost(text) {
  if (connection.value.state !== "lost") connection.value = { state: "lost", since: Date.now(), text };
}

/** Take one line of the stream. */
export function take(line) {
  if (line.event === "state") {
    const old = world.value;
    const next = { at_us: line.at_us, server: line.server, health: line.health, changes: line.changes, ...empty() };
    for (const kind of KINDS) {
      for (const item of line[kind] ?? []) {
        const before = old[kind].get(item.name);
        next[kind].set(item.name, { ...item, speeds: before?.speeds ?? {}, past: before?.past ?? [], seen: marksOf(kind, before, item, line.at_us) });
      }
    }
    world.value = next;
    connection.value = { state: "live", since: Date.now() };
  } else if (line.event === "numbers") {
    world.value = merged(world.value, line);
  } else if (line.event === "changed") {
    newestChange.value = line;
    world.value = { ...world.value, changes: line.number };
  }
}

function merged(old, line) {
  const seconds = (line.at_us - old.at_us) / 1e6;
  const next = { ...old, at_us: line.at_us };
  if (line.server) next.server = { ...old.server, ...line.server };
  if (line.health) next.health = line.health;
  if (line.changes !== undefined) next.changes = line.changes;
  for (const kind of KINDS) {
    const items = new Map(old[kind]);
    for (const name of line.gone?.[kind] ?? []) items.delete(name);
    const fresh = new Map((line[kind] ?? []).map((item) => [item.name, item]));
    for (const [name, item] of fresh) if (!items.has(name)) items.set(name, { ...item, speeds: {}, past: [] });
    for (const [name, before] of items) {
      const now = { ...before, ...fresh.get(name) };
      now.seen = marksOf(kind, before, now, line.at_us);
      if (seconds > 0 && old[kind].has(name)) measure(kind, before, now, seconds);
      items.set(name, now);
    }
    next[kind] = items;
  }
  return next;
}

function measure(kind, before, now, seconds) {
  now.speeds = {};
  for (const counter of COUNTERS[kind]) {
    const grown = now[counter] - before[counter];
    now.speeds[counter] = grown >= 0 ? grown / seconds : null;
  }
  const [first] = COUNTERS[kind];
  now.past = [...(before.past ?? []).slice(1 - HISTORY), now.speeds[first] ?? 0];
  if (kind === "operators" || now.speeds[first] === null) return;
  const newest = now.past.slice(-SMOOTH);
  now.speeds[first] = newest.reduce((sum, one) => sum + one, 0) / newest.length;
}

/** When something was seen for the first time: since when an operator is blocked, when a query emitted its last row. */
function marksOf(kind, before, now, atUs) {
  const seen = before?.seen ?? {};
  if (kind === "operators") {
    const stuck = now.blocked && (!before || before.output_tuples === now.output_tuples);
    return { blockedUs: now.blocked ? (stuck && seen.blockedUs) || atUs : null };
  }
  if (kind === "queries" || kind === "streams") {
    const counter = COUNTERS[kind][0];
    return { changedUs: before && before[counter] !== undefined && now[counter] !== before[counter] ? atUs : seen.changedUs ?? null };
  }
  return seen;
}

// -- what follows from it ----------------------------------------------------------------------------------------------

/** Whether an operator waits long enough to call it trouble. */
export const waitsLong = (operator) =>
  Boolean(operator.blocked && operator.seen?.blockedUs && world.value.at_us - operator.seen.blockedUs >= WAITING_US);

export const operatorsByQuery = computed(() => {
  const found = new Map();
  for (const operator of world.value.operators.values()) {
    for (const query of operator.queries) {
      if (!found.has(query)) found.set(query, []);
      found.get(query).push(operator);
    }
  }
  return found;
});

export const membersOf = (query) => operatorsByQuery.value.get(query) ?? [];

/** The inputs that an operator waits for: those without a tuple whose register is lowest. */
export function holding(operator) {
  if (!operator.blocked) return [];
  const empty = operator.inputs.filter((input) => !input.queue_tuples);
  const lowest = Math.min(...empty.map((input) => input.register_us ?? -Infinity));
  return empty.filter((input) => (input.register_us ?? -Infinity) === lowest);
}

/** A query's numbers for the overview. */
export function summary(query) {
  const members = membersOf(query.name);
  const streams = streamsOf(query).map((name) => find("streams", name)).filter(Boolean);
  const held = members.reduce((sum, operator) => sum + queued(operator), 0);
  const newest = Math.max(...streams.map((stream) => stream.newest_us ?? -Infinity));
  const reached = query.progress_us ?? promised(members.find((operator) => operator.kind === "sink"));
  return {
    held,
    state: stateOf(query, members),
    rate: speed(query, "rows"),
    lag_us: reached === null || !Number.isFinite(newest) ? null : Math.max(0, newest - reached),
    late: streams.reduce((sum, stream) => sum + stream.late, 0),
    errors: members.reduce((sum, operator) => sum + operator.errors, 0) + query.lost,
    age_us: query.seen?.changedUs ? Math.max(0, world.value.at_us - query.seen.changedUs) : null,
  };
}

/** How far the promises reach that arrive at an operator: its own, or those of the operators that it reads. */
function promised(operator) {
  if (!operator) return null;
  if (operator.low_water_us !== null && operator.kind !== "sink") return operator.low_water_us;
  const reached = operator.reads.map((name) => promised(find("operators", name))).filter((at) => at !== null);
  return reached.length ? Math.min(...reached) : null;
}

export const queued = (operator) => operator.inputs.reduce((sum, input) => sum + input.queue_tuples, 0);

/** All streams that a query depends on, also through other queries. */
export function streamsOf(query, known = new Set()) {
  if (known.has(query.name)) return [];
  known.add(query.name);
  const through = query.reads_queries.map((name) => find("queries", name)).filter(Boolean);
  return [...new Set([...query.reads_streams, ...through.flatMap((other) => streamsOf(other, known))])];
}

/** A word and a level for the state of a query: `bad` is trouble, `warn` somebody's decision, `idle` nothing to do. */
export function stateOf(query, members = membersOf(query.name)) {
  if (query.state === "failed") return { word: "failed", level: "bad" };
  if (query.state === "paused") return { word: "paused", level: "warn" };
  if (query.backfill && !query.backfill.history_done && query.state !== "running") return { word: "catching up", level: "warn" };
  if (query.slow_reader) return { word: "slow reader", level: "bad" };
  if (members.some(waitsLong)) return { word: "waiting", level: "bad" };
  if (query.state !== "running") return { word: query.state, level: "warn" };
  return speed(query, "rows") ? { word: "running", level: "good" } : { word: "quiet", level: "idle" };
}

export function stateOfStream(stream) {
  if (stream.ended) return { word: "ended", level: "idle" };
  if (stream.withheld_for?.length) return { word: "held back", level: "bad" };
  if (stream.fields && stream.name.endsWith(".late")) return { word: "side stream", level: "idle" };
  if (!stream.feeds.length) return { word: "no feed", level: "warn" };
  return speed(stream, "tuples") ? { word: "receiving", level: "good" } : { word: "silent", level: "idle" };
}

export function stateOfSink(sink) {
  const level = { running: "good", waiting: "bad", failed: "bad" }[sink.state] ?? "warn";
  return { word: sink.state, level };
}

export function stateOfOperator(operator) {
  if (operator.errors) return { word: "errors", level: "bad" };
  if (waitsLong(operator)) return { word: "waiting", level: "bad" };
  return speed(operator, "input_tuples") ? { word: "working", level: "good" } : { word: "quiet", level: "idle" };
}
