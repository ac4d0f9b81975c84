// The graph of a component as boxes and lines: what is shown, and where.
//
// Rule: positions depend on the structure alone and are computed once for each, so numbers change without anything moving.

import { Graph, layout } from "./vendor/console.js";
import { all, find, holding, membersOf, waitsLong } from "./state.js";

export const WIDTH = 150;
const HEIGHT = { feed: 34, stream: 46, operator: 52, result: 46, query: 58, sink: 34 };
// Components with more operators are shown a box per query at first.
export const MANY = 60;

/** Boxes and lines of a component: {nodes, edges}, each node with an id, a type and its item. */
export function graphOf(component, expanded) {
  const graph = { nodes: new Map(), edges: [] };
  const add = (id, type, item, more = {}) => graph.nodes.set(id, { id, type, item, width: WIDTH, height: Math.max(HEIGHT[type], ports(type, item) * 30), ...more });
  const ports = (type, item) => (type === "operator" ? item.inputs.length : 1);
  // A fork is a row of the state table that moves no tuple: its readers read the buffer itself.
  const members = component.operators.map((name) => find("operators", name)).filter((operator) => operator && operator.kind !== "fork");
  // The box that stands for an operator: its own, or that of its query.
  const folded = (operator) => (operator.kind === "source" || operator.queries.some(expanded) ? null : operator.queries[0]);
  const boxes = new Map(members.map((operator) => [operator.name, folded(operator) ? `query:${folded(operator)}` : operator.name]));
  for (const operator of members) {
    const box = boxes.get(operator.name);
    if (graph.nodes.has(box)) continue;
    if (box !== operator.name) add(box, "query", find("queries", folded(operator)));
    else if (operator.kind === "source") addStream(graph, add, operator);
    else add(box, operator.kind === "sink" ? "result" : "operator", operator);
  }
  const known = new Set();
  for (const operator of members) {
    operator.inputs.forEach((input, index) => {
      const [from, to] = [boxes.get(input.from), boxes.get(operator.name)];
      if (!from || from === to) return;
      const id = `${from}>${to}${from === input.from && to === operator.name ? `>${index}` : ""}`;
      const edge = known.has(id) ? graph.edges.find((one) => one.id === id) : { id, from, to, index, arcs: [] };
      if (!known.has(id)) graph.edges.push(edge);
      known.add(id);
      edge.arcs.push([operator.name, index]);
    });
  }
  for (const sink of all("sinks")) {
    const from = boxes.get(`${sink.query}.sink1`);
    if (!from) continue;
    add(`sink:${sink.name}`, "sink", sink);
    graph.edges.push({ id: `${from}>sink:${sink.name}`, from, to: `sink:${sink.name}`, index: 0, arcs: [] });
  }
  return graph;
}

function addStream(graph, add, operator) {
  const name = operator.name.slice(0, -".source".length);
  const stream = find("streams", name);
  add(operator.name, "stream", operator, { stream });
  if (!stream) return;
  add(`feed:${name}`, "feed", stream);
  graph.edges.push({ id: `feed:${name}>${operator.name}`, from: `feed:${name}`, to: operator.name, index: 0, arcs: [] });
}

/** Only the nodes from which a node can be reached, or that can be reached from it. */
export function pathThrough(graph, ids) {
  const kept = new Set();
  const walk = (id, from, to, seen) => {
    if (seen.has(id)) return;
    seen.add(id);
    kept.add(id);
    for (const edge of graph.edges) if (edge[from] === id) walk(edge[to], from, to, seen);
  };
  for (const id of ids) {
    if (!graph.nodes.has(id)) continue;
    walk(id, "from", "to", new Set());
    walk(id, "to", "from", new Set());
  }
  return {
    nodes: new Map([...graph.nodes].filter(([id]) => kept.has(id))),
    edges: graph.edges.filter(({ from, to }) => kept.has(from) && kept.has(to)),
  };
}

/** The lines that lead from a waiting operator back to the feed that holds it, by the arcs (`operator input`) and feeds. */
export function heldBack(members) {
  const held = new Set();
  const walk = (operator, inputs) => {
    for (const input of inputs) {
      const key = `${operator.name} ${operator.inputs.indexOf(input)}`;
      if (held.has(key)) continue;
      held.add(key);
      const upstream = find("operators", input.from);
      if (!upstream) continue;
      if (upstream.kind === "source") held.add(`feed:${upstream.name.slice(0, -".source".length)}`);
      else walk(upstream, upstream.blocked ? holding(upstream) : lowest(upstream));
    }
  };
  for (const operator of members) if (waitsLong(operator)) walk(operator, holding(operator));
  return held;
}

/** The inputs whose promise reaches least far. */
function lowest(operator) {
  const reached = (input) => input.register_us ?? find("operators", input.from)?.low_water_us ?? -Infinity;
  const least = Math.min(...operator.inputs.map(reached));
  return operator.inputs.filter((input) => !input.queue_tuples && reached(input) === least);
}

let newest = { key: null, placed: null };

/** Positions: {width, height, nodes: id -> {x, y}, edges: id -> points}. */
export function placed(graph) {
  const key = `${[...graph.nodes.keys()].join()}|${graph.edges.map(({ id }) => id).join()}`;
  if (newest.key === key) return newest.placed;
  const drawing = new Graph({ multigraph: true });
  drawing.setGraph({ rankdir: "LR", nodesep: 20, ranksep: 68, edgesep: 12, marginx: 12, marginy: 14, ranker: "network-simplex" });
  drawing.setDefaultEdgeLabel(() => ({}));
  for (const { id, width, height } of graph.nodes.values()) drawing.setNode(id, { width, height });
  for (const { id, from, to } of graph.edges) drawing.setEdge(from, to, { minlen: 1 }, id);
  layout(drawing);
  const { width, height } = drawing.graph();
  const nodes = new Map([...graph.nodes.keys()].map((id) => [id, drawing.node(id)]));
  const edges = new Map(graph.edges.map((edge) => [edge.id, line(graph, nodes, edge, drawing.edge(edge.from, edge.to, edge.id).points)]));
  newest = { key, placed: { width, height, nodes, edges } };
  return newest.placed;
}

/** A line from the right side of a box to the place of its input on the left side of the next. */
function line(graph, nodes, edge, points) {
  const [from, to] = [nodes.get(edge.from), nodes.get(edge.to)];
  const into = graph.edges.filter((one) => one.to === edge.to).sort((a, b) => nodes.get(a.from).y - nodes.get(b.from).y || a.index - b.index);
  const box = graph.nodes.get(edge.to);
  const place = (into.indexOf(edge) + 1) / (into.length + 1);
  const end = { x: to.x - box.width / 2, y: to.y - box.height / 2 + box.height * place };
  const begin = { x: from.x + graph.nodes.get(edge.from).width / 2, y: from.y };
  const long = end.x - begin.x > WIDTH; // past other boxes, so by the way that the layout found
  return { begin, end, path: curve([begin, ...(long ? points.slice(1, -1).filter(({ x }) => x > begin.x + 8 && x < end.x - 8) : []), end]) };
}

function curve(points) {
  let text = `M${at(points[0])}`;
  for (let index = 1; index < points.length; index++) {
    const [a, b] = [points[index - 1], points[index]];
    const middle = (a.x + b.x) / 2;
    text += `C${middle.toFixed(1)},${a.y.toFixed(1)} ${middle.toFixed(1)},${b.y.toFixed(1)} ${at(b)}`;
  }
  return text;
}

const at = ({ x, y }) => `${x.toFixed(1)},${y.toFixed(1)}`;

/** The node to which an arrow key leads: along the lines, or to the neighbour above or below. */
export function neighbour(graph, positions, id, key) {
  const here = positions.nodes.get(id);
  const nearest = (ids, distance) => ids.filter((one) => one !== id).sort((a, b) => distance(positions.nodes.get(a)) - distance(positions.nodes.get(b)))[0];
  const along = (from, to) => nearest(graph.edges.filter((edge) => edge[from] === id).map((edge) => edge[to]), (one) => Math.abs(one.y - here.y));
  const aside = (way) => nearest(
    [...graph.nodes.keys()].filter((one) => Math.abs(positions.nodes.get(one).x - here.x) < WIDTH / 2 && (positions.nodes.get(one).y - here.y) * way > 1),
    (one) => Math.abs(one.y - here.y),
  );
  return { ArrowLeft: () => along("to", "from"), ArrowRight: () => along("from", "to"), ArrowUp: () => aside(-1), ArrowDown: () => aside(1) }[key]?.();
}

/** The numbers of a query that is one box. */
export function foldedQuery(query) {
  const members = membersOf(query.name);
  return { operators: members.length, waiting: members.filter(waitsLong).length };
}
