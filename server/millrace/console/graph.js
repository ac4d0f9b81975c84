// The graph of a component, live: which operator waits, for which stream, since when, and what would end it.

import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/console.js";
import { path } from "./api.js";
import { clock, count, iso, rate, span } from "./format.js";
import { Button, Empty, State, choose, chosen, useCall } from "./kit.js";
import { MANY, WIDTH, foldedQuery, graphOf, heldBack, neighbour, pathThrough, placed } from "./layout.js";
import { Menu, OperatorPanel, menuOf } from "./operatorpanel.js";
import { QueryBox, StreamBox, WhyBox, useSince, waitingSince } from "./graphpanel.js";
import { adjust, go, route, to } from "./router.js";
import { all, find, limited, speed, stateOf, waitsLong, world } from "./state.js";

export function GraphPage({ name }) {
  const components = all("components");
  const component = find("components", name) ?? components[0];
  if (!component) return html`<h1>Graph</h1><${Empty}>${limited() ? "Your token is for single streams and queries; a graph belongs to several." : "No components yet: a query makes one."}<//>`;
  return html`<${ComponentGraph} key=${component.name} component=${component} components=${components} />`;
}

function ComponentGraph({ component, components }) {
  useCall(`millrace component show ${component.name} --format text`, path("components", component.name, "graph"));
  const wanted = chosen("query") && !chosen("at") ? `${chosen("query")}.sink1` : chosen("at");
  const view = chosen("view", component.operators.length > MANY ? "queries" : "operators");
  const show = chosen("show", "all");
  const [opened, setOpened] = useState(new Set());
  const [menu, setMenu] = useState(null);
  const [zoom, setZoom] = useState(null); // null: fit the width
  const members = component.operators.map((one) => find("operators", one)).filter(Boolean);
  const selected = find("operators", wanted)?.queries ?? [];
  const expanded = (query) => view === "operators" || opened.has(query) || selected.includes(query);

  const whole = graphOf(component, expanded);
  const held = heldBack(members);
  const troubled = [...whole.nodes.values()].filter((node) => isBad(node)).map(({ id }) => id);
  const at = whole.nodes.has(wanted) ? wanted : null;
  const graph = show === "path" && at ? pathThrough(whole, [at]) : show === "trouble" ? pathThrough(whole, troubled) : whole;
  const waiting = members.filter(waitsLong);
  useSince(waiting);
  const open = (query) => setOpened(new Set(opened).add(query));
  const choice = edgeOf(graph, chosen("edge"));

  return html`
    <header class="head"><h1>${components.length > 1 ? html`<select aria-label="Component" value=${component.name} onChange=${(event) => go("graph", event.target.value)}>
        ${components.map((one) => html`<option key=${one.name} value=${one.name}>${one.name}</option>`)}</select>` : component.name}</h1>
      ${waiting.length ? html`<${State} word=${`${waiting.length} waiting`} level="bad" />` : html`<${State} word=${speed(component, "steps") ? "flowing" : "quiet"} level=${speed(component, "steps") ? "good" : "idle"} />`}
      <span class="muted">${component.strategy}, ${count(component.operators.length)} operators, ${count(component.queued)} queued</span>
      <div class="tools">
        <label class="inline">Boxes <select value=${view} onChange=${choose("view")}><option value="operators">operators</option><option value="queries">queries</option></select></label>
        <label class="inline">Show <select value=${show} onChange=${choose("show")}><option value="all">all</option><option value="path">path of the selection</option><option value="trouble">trouble</option></select></label>
        <span class="zoom"><${Button} label="Smaller" onClick=${() => setZoom((zoom ?? 1) / 1.25)}>−<//><${Button} label="Fit the width" onClick=${() => setZoom(null)}>fit<//><${Button} label="Larger" onClick=${() => setZoom((zoom ?? 1) * 1.25)}>+<//></span>
        <a class="button" href=${to("components", component.name)}>State table</a>
      </div>
    </header>
    <div class=${`graph-page ${at || choice ? "with-panel" : ""}`}>
      <div class="graph-side">
        ${graph.nodes.size ? html`<${Drawing} graph=${graph} held=${held} at=${at} choice=${choice} zoom=${zoom}
          select=${(id) => adjust({ at: id, edge: "", query: "" })} selectEdge=${(id) => adjust({ edge: id, at: "", query: "" })}
          open=${open} setMenu=${setMenu} />` : html`<${Empty}>${show === "trouble" ? "Nothing waits." : "Nothing to show."}<//>`}
        <${Legend} />
      </div>
      ${(at || choice) && html`<aside class="graph-panel" aria-label="Selection"><${Selection} graph=${graph} at=${at} edge=${choice} held=${held} open=${open} setMenu=${setMenu} /></aside>`}
    </div>
    ${menu && html`<${Menu} ...${menu} close=${() => setMenu(null)} />`}`;
}

const edgeOf = (graph, id) => graph.edges.find((edge) => edge.id === id) ?? null;
const isBad = ({ type, item }) => ((type === "operator" || type === "result") && waitsLong(item)) || (type === "query" && stateOf(item).level === "bad");

function Selection({ graph, at, edge, held, open, setMenu }) {
  const close = html`<${Button} kind="quiet close" label="Close the panel" onClick=${() => adjust({ at: "", edge: "", query: "" })}>×<//>`;
  if (edge) return html`${close}<${WhyBox} edge=${edge} held=${isHeld(edge, held)} />`;
  const node = graph.nodes.get(at);
  if (!node) return close;
  if (node.type === "feed") return html`${close}<${StreamBox} stream=${node.item} />`;
  if (node.type === "stream") return html`${close}${node.stream && html`<${StreamBox} stream=${node.stream} />`}`;
  if (node.type === "query") return html`${close}<${QueryBox} query=${node.item} unfold=${() => open(node.item.name)} />`;
  if (node.type === "result") return html`${close}<${QueryBox} query=${find("queries", node.item.queries[0])} />`;
  if (node.type === "sink") return html`${close}<h2><a href=${to("sinks", node.item.name)}>${node.item.name}</a></h2><p>${count(node.item.delivered)} rows delivered, ${count(node.item.held)} queued.</p>`;
  return html`${close}<${OperatorPanel} operator=${node.item} setMenu=${setMenu} />`;
}

const isHeld = (edge, held) => (edge.from.startsWith("feed:") ? held.has(edge.from) : edge.arcs.some(([name, index]) => held.has(`${name} ${index}`)));

const Legend = () => html`<ul class="legend" aria-label="Legend">
  <li><svg viewBox="0 0 40 10" aria-hidden="true"><path class="edge" d="M0,5H40" /></svg>arc; wider with queued tuples</li>
  <li><svg viewBox="0 0 40 10" aria-hidden="true"><path class="edge is-held" d="M0,5H40" /></svg>an operator waits for this input</li>
  <li><span class="register">11:02:41.5</span> register of an input</li>
  <li><kbd>←</kbd> <kbd>→</kbd> along the arcs, <kbd>Enter</kbd> details, <kbd>W</kbd> why, <kbd>M</kbd> actions</li>
</ul>`;

function Drawing({ graph, held, at, choice, zoom, select, selectEdge, open, setMenu }) {
  const positions = placed(graph);
  const box = useRef(null);
  const [focus, setFocus] = useState(null);
  const [room, setRoom] = useState(1000);
  useLayoutEffect(() => {
    const watch = new ResizeObserver(([{ contentRect }]) => setRoom(contentRect.width));
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  const text = useMemo(() => parseFloat(getComputedStyle(document.documentElement).fontSize) / 16, [room]);
  const fit = Math.min(1.25, Math.max(0.72, (room - 24) / positions.width));
  const scale = (zoom === null ? fit : zoom) * text;
  const first = focus && graph.nodes.has(focus) ? focus : at ?? graph.nodes.keys().next().value;
  useEffect(() => {
    if (at) box.current.querySelector(`[data-id="${CSS.escape(at)}"]`)?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [at]);

  const move = (id) => {
    setFocus(id);
    box.current.querySelector(`[data-id="${CSS.escape(id)}"]`)?.focus();
  };
  const onKey = (event, node) => {
    const next = neighbour(graph, positions, node.id, event.key);
    if (next) move(next);
    else if (event.key === "Enter" || event.key === " ") select(node.id);
    else if (event.key === "w") selectHeld(node);
    else if (event.key === "m" || event.key === "ContextMenu" || (event.key === "F10" && event.shiftKey)) showMenu(event, node);
    else if (event.key === "Escape") adjust({ at: "", edge: "", query: "" });
    else if (!event.key.startsWith("Arrow")) return;
    event.preventDefault();
  };
  const selectHeld = (node) => {
    const edge = graph.edges.find((one) => (one.to === node.id || one.from === node.id) && isHeld(one, held));
    if (edge) selectEdge(edge.id);
    else select(node.id);
  };
  const showMenu = (event, node) => {
    const items = menuOf(node, () => open(node.item.name));
    if (!items.length) return;
    event.preventDefault();
    const from = event.currentTarget.getBoundingClientRect();
    setMenu({ items, title: node.id, x: event.clientX || from.left + 20, y: event.clientY || from.bottom, back: event.currentTarget });
  };
  return html`<div class="graph" ref=${box}>
    <svg width=${positions.width * scale} height=${positions.height * scale} viewBox=${`0 0 ${positions.width} ${positions.height}`} role="group" aria-label="Graph of the component">
      <g class="edges">${graph.edges.map((edge) => html`<${Edge} key=${edge.id} edge=${edge} line=${positions.edges.get(edge.id)} held=${isHeld(edge, held)}
        chosen=${choice?.id === edge.id} faded=${at && edge.from !== at && edge.to !== at} select=${() => selectEdge(edge.id)} into=${graph.nodes.get(edge.to)} />`)}</g>
      ${[...graph.nodes.values()].map((node) => html`<g key=${node.id} data-id=${node.id} class=${`node is-${node.type} ${isTrouble(node, held) ? "is-bad" : ""} ${node.id === at ? "is-chosen" : ""}`}
        transform=${`translate(${positions.nodes.get(node.id).x - node.width / 2},${positions.nodes.get(node.id).y - node.height / 2})`}
        role="button" tabindex=${node.id === first ? 0 : -1} aria-pressed=${String(node.id === at)} aria-label=${spoken(node, held)}
        onClick=${() => (setFocus(node.id), select(node.id))}
        onContextMenu=${(event) => showMenu(event, node)} onFocus=${() => setFocus(node.id)} onKeyDown=${(event) => onKey(event, node)}>
        <${Box} node=${node} held=${held} /></g>`)}
    </svg></div>`;
}

/** Wider with the tuples that wait in its queues. */
const width = (tuples) => 1.4 + Math.min(10, Math.log2(1 + tuples) * 0.9);

function Edge({ edge, line, held, chosen: isChosen, faded, select, into }) {
  const inputs = edge.arcs.map(([name, index]) => find("operators", name)?.inputs[index]).filter(Boolean);
  const tuples = inputs.reduce((sum, input) => sum + input.queue_tuples, 0);
  const register = into.type === "operator" && into.item.inputs.length > 1 && inputs.length === 1 ? inputs[0].register_us : null;
  const words = `${edge.from} to ${edge.to}: ${held ? "an operator waits for it" : `${count(tuples)} queued`}`;
  return html`<g class=${`edge-group edge-line ${faded ? "is-faded" : ""} ${isChosen ? "is-chosen" : ""}`} role="button" tabindex="-1" aria-label=${words} onClick=${select} data-edge=${edge.id}>
    <title>${words}${register !== null ? `, register ${iso(register)}` : ""}</title>
    <path class="grip" d=${line.path} />
    <path class=${`edge ${held ? "is-held" : ""} ${tuples ? "is-queued" : ""}`} d=${line.path} style=${{ strokeWidth: width(tuples) + (held ? 1 : 0) }} />
  </g>
  <g class="edge-group" aria-hidden="true">
    ${register !== null && html`<text class=${`register ${held ? "bad" : ""}`} x=${line.end.x - 5} y=${line.end.y - 4 - width(tuples) / 2} text-anchor="end">${clock(register, null, 1)}</text>`}
    ${tuples > 0 && html`<text class="queue" x=${line.begin.x + 6} y=${line.begin.y + (Math.abs(line.end.y - line.begin.y) < 14 ? width(tuples) / 2 + 11 : -4 - width(tuples) / 2)}>${count(tuples)}</text>`}
  </g>`;
}

const short = (text, letters) => (text.length > letters ? `${text.slice(0, letters - 1)}…` : text);

/** The lines of a box: its name and one or two of numbers, as long as there is room. */
function shown(node, held) {
  const [title, ...numbers] = WORDS[node.type](node.item, held, node).filter(Boolean);
  return [short(title, isTrouble(node, held) ? 18 : 20), ...numbers.map((text) => short(text, 24))];
}

const isTrouble = (node, held) => isBad(node) || (node.type === "feed" && held.has(node.id));

function Box({ node, held }) {
  const { type, width: wide, height } = node;
  const [title, below, third] = shown(node, held);
  const bad = isTrouble(node, held);
  // The space at the end of each line keeps their words apart where they are read as one text.
  return html`
    <rect class="shape" width=${wide} height=${height} rx=${type === "result" || type === "feed" ? height / 2 : 5} />
    ${bad && html`<path class="warning-shape" transform=${`translate(${wide - 20},7)`} d="M6 .8 11.6 11H.4z" />`}
    <text class="name" x="12" y=${third ? 17 : height / 2 - 3}>${`${title} `}</text>
    <text class="numbers" x="12" y=${third ? 31 : height / 2 + 12}>${`${below} `}</text>
    ${third && html`<text class=${`numbers ${bad || node.item.errors ? "bad" : ""}`} x="12" y="45">${third}</text>`}`;
}

const waitWords = (operator) => (waitsLong(operator) ? `waits ${span(world.value.at_us - waitingSince(operator))}` : "");

const WORDS = {
  feed: (stream, held) => (held.has(`feed:${stream.name}`)
    ? [feedName(stream), stream.feeds.length ? "silent" : "nobody feeds it"]
    : [feedName(stream), stream.feeds.length ? rate(speed(stream, "tuples")) : "nobody feeds it"]),
  stream: (operator, held, { stream }) => [operator.name.slice(0, -".source".length), stream ? `mark ${clock(stream.mark_us, null, 1)}` : "stream"],
  operator: (operator) => [operator.name, `${operator.kind} · ${rate(speed(operator, "output_tuples"))}`, waitWords(operator) || (operator.errors ? `${count(operator.errors)} rows failed` : operator.state_tuples ? `${count(operator.state_tuples)} in state` : operator.break ? "break point" : "")],
  result: (operator) => [operator.queries[0], `query · ${rate(speed(operator, "output_tuples"))}`],
  query: (query) => {
    const { operators, waiting } = foldedQuery(query);
    return [query.name, `${count(operators)} operators · ${rate(speed(query, "rows"))}`, waiting ? `${count(waiting)} waiting` : stateOf(query).word];
  },
  sink: (sink) => [sink.name, `${sink.type} · ${rate(speed(sink, "delivered"))}`],
};

// A feed without a name has a long random one: its beginning tells it apart.
const named = (feed) => (/^[0-9a-f]{32}$/.test(feed) ? `feed ${feed.slice(0, 8)}` : feed);
const feedName = (stream) => (stream.feeds.length === 1 ? named(stream.feeds[0].feed) : stream.feeds.length ? `${stream.feeds.length} feeds` : "no feed");

/** A box in words: what it shows, and its whole name if that is longer. */
function spoken(node, held) {
  const lines = shown(node, held);
  const [title] = WORDS[node.type](node.item, held, node);
  return `${node.type} ${lines.join(" ")}${lines[0] === title ? "" : `, ${title}`}`;
}
