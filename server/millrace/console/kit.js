// The small parts that every page is made of.

import { html, signal, useEffect, useRef, useState } from "./vendor/console.js";
import { adjust, route } from "./router.js";

// A shape for each level, so that no state is shown by its colour alone.
const SHAPES = {
  good: html`<circle cx="6" cy="6" r="4" />`,
  bad: html`<path d="M6 .8 11.6 11H.4z" />`,
  warn: html`<path d="M6 .6 11.4 6 6 11.4.6 6z" />`,
  idle: html`<circle cx="6" cy="6" r="3.4" fill="none" stroke="currentColor" stroke-width="1.6" />`,
};

/** A state: its word, with the shape and colour of its level. */
export const State = ({ word, level, title }) => html`
  <span class=${`state is-${level}`} title=${title}>
    <svg viewBox="0 0 12 12" aria-hidden="true">${SHAPES[level]}</svg>${word}
  </span>`;

/** A small chart of the newest rates; its last value is written next to it, so it is decoration. */
export function Spark({ values = [], width = 72, height = 18 }) {
  if (values.length < 2) return html`<svg class="spark" width=${width} height=${height} aria-hidden="true" />`;
  const most = Math.max(...values, 1e-9);
  const step = width / 59;
  const x = (index) => width - (values.length - 1 - index) * step;
  const y = (value) => height - 1.5 - (value / most) * (height - 3);
  const line = values.map((value, index) => `${x(index).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  return html`<svg class="spark" width=${width} height=${height} aria-hidden="true">
    <polygon points=${`${x(0)},${height} ${line} ${width},${height}`} /><polyline points=${line} />
  </svg>`;
}

/** A figure with its name; `level` colours it, `note` explains it. */
export const Figure = ({ name, value, note, level, href }) => html`
  <div class=${`figure ${level ? `is-${level}` : ""}`}>
    <dt>${name}</dt>
    <dd>${href ? html`<a href=${href}>${value}</a>` : value}${note && html`<small>${note}</small>`}</dd>
  </div>`;

export const Figures = ({ children }) => html`<dl class="figures">${children}</dl>`;

export const Panel = ({ title, tools, children, className = "", id }) => html`
  <section class=${`panel ${className}`} id=${id}>
    ${title && html`<header><h2>${title}</h2>${tools && html`<div class="tools">${tools}</div>`}</header>`}
    ${children}
  </section>`;

export const Empty = ({ children }) => html`<p class="empty">${children}</p>`;

export function Button({ children, onClick, kind = "", disabled, title, label, pressed, type = "button" }) {
  return html`<button type=${type} class=${kind} disabled=${disabled} title=${title} aria-label=${label}
    aria-pressed=${pressed === undefined ? undefined : String(pressed)} onClick=${onClick}>${children}</button>`;
}

/** A text with a button that copies it. */
export function Copied({ text, label }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      copyBySelection(text); // without TLS, browsers have no clipboard except on this machine
    }
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  };
  return html`<span class="copied">
    <span class="call">${label}</span><code tabindex="0" aria-label=${`${label}: ${text}`}>${text}</code>
    <${Button} kind="quiet" onClick=${copy} label=${`Copy the ${label} call`}>${done ? "Copied" : "Copy"}<//>
  </span>`;
}

function copyBySelection(text) {
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

/** Text as SQL: words of the language stand out. */
const WORDS = /('(?:[^']|'')*')|(--[^\n]*)|\b(\d+(?:\.\d+)?)\b|\b(ADD|ALL|ALTER|AND|AS|BETWEEN|BY|CASE|CHRONICLE|CREATE|CROSS|DESC|DISTINCT|DROP|ELSE|END|EXPLAIN|FILTER|FOLLOWED|FROM|GROUP|HAVING|HOP|IF|IN|INTERVAL|INTO|IS|JOIN|LATEST|LEFT|LIKE|LIMIT|NO|NOT|NULL|ON|OR|ORDER|OUTER|OVER|PARTITION|QUERY|RANGE|RECENT|REPLACE|ROWS|SELECT|SESSION|SET|SINK|SLIDE|STREAM|THEN|TUMBLE|UNBOUNDED|UNION|USING|VALUES|WHEN|WHERE|WITH|WITHIN)\b/gi;

export function Sql({ text }) {
  const parts = [];
  let from = 0;
  for (const match of (text ?? "").matchAll(WORDS)) {
    parts.push(text.slice(from, match.index));
    const kind = match[1] ? "string" : match[2] ? "comment" : match[3] ? "number" : "word";
    parts.push(html`<span class=${`sql-${kind}`}>${match[0]}</span>`);
    from = match.index + match[0].length;
  }
  parts.push((text ?? "").slice(from));
  return html`<pre class="sql" tabindex="0" aria-label="SQL"><code>${parts}</code></pre>`;
}

/** A table of objects. A column is {key, name, number, of(row), show(row), wide}: `of` is what it is sorted by. */
export function Table({ columns, rows, label, id, rowClass, rowKey = (row, index) => row.name ?? row.query ?? index, empty = "None yet." }) {
  const [sort, setSort] = useState(null);
  if (!rows.length) return html`<${Empty}>${empty}<//>`;
  const column = sort && columns.find(({ key }) => key === sort.key);
  const ordered = column ? [...rows].sort((a, b) => compare(column.of(a), column.of(b)) * sort.way) : rows;
  const order = ({ key, of }) => of && setSort(sort?.key === key ? (sort.way === 1 ? { key, way: -1 } : null) : { key, way: 1 });
  return html`<div class="scroll" tabindex="0" role="group" aria-label=${label}><table id=${id}>
    <thead><tr>${columns.map((one) => html`
      <th key=${one.key} scope="col" class=${one.number ? "number" : ""}
        aria-sort=${sort?.key === one.key ? (sort.way === 1 ? "ascending" : "descending") : undefined}>
        ${one.of ? html`<button type="button" class="sort" onClick=${() => order(one)}>${one.name}<span aria-hidden="true">${sort?.key === one.key ? (sort.way === 1 ? "▲" : "▼") : ""}</span></button>` : one.name}
      </th>`)}</tr></thead>
    <tbody>${ordered.map((row, index) => html`<tr key=${rowKey(row, index)} class=${rowClass?.(row) ?? ""}>
      ${columns.map((one) => html`<td key=${one.key} class=${`${one.number ? "number" : ""} ${one.wide ? "wide" : ""}`}>${one.show(row)}</td>`)}
    </tr>`)}</tbody>
  </table></div>`;
}

function compare(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return 1;
  if (b === null || b === undefined) return -1;
  return a < b ? -1 : 1;
}

/** The pages of one object. */
export const Tabs = ({ tabs, current }) => html`<nav class="tabs" aria-label="Pages of this object">
  ${tabs.map(([key, name, href]) => html`<a key=${key} href=${href} aria-current=${key === current ? "page" : undefined}>${name}</a>`)}
</nav>`;

/** A box with choices that replaces the part of the address after "?". */
export const choose = (key) => (event) => adjust({ [key]: event.target.value });
export const chosen = (key, other = "") => route.value.query.get(key) ?? other;

const MOMENT = /\d{4}-\d\d-\d\dT(\d\d:\d\d:\d\d(?:\.\d{1,3})?)\d*Z/g;

/** A sentence of the server, with its moments as times of day: a day's date is rarely news. */
export function Sentence({ text }) {
  const parts = [];
  let from = 0;
  for (const match of (text ?? "").matchAll(MOMENT)) {
    parts.push(text.slice(from, match.index), html`<time datetime=${match[0]} title=${match[0]}>${match[1]}</time>`);
    from = match.index + match[0].length;
  }
  return [...parts, (text ?? "").slice(from)];
}

/** Read an address, and again every `seconds`: {data, error, again}. */
export function useAnswer(load, depends, seconds = 0) {
  const [answer, setAnswer] = useState({ data: null, error: null });
  const current = useRef(0);
  const read = () => {
    const turn = ++current.current;
    load().then(
      (data) => turn === current.current && setAnswer({ data, error: null }),
      (error) => turn === current.current && setAnswer((old) => ({ data: old.data, error })),
    );
  };
  useEffect(() => {
    setAnswer({ data: null, error: null });
    read();
    if (!seconds) return undefined;
    const timer = setInterval(() => document.visibilityState === "visible" && read(), seconds * 1000);
    return () => {
      clearInterval(timer);
      current.current += 1;
    };
  }, depends);
  return { ...answer, again: read };
}

export const Failure = ({ error }) => (error ? html`<p class="failure" role="alert">${error.message}</p>` : null);

/** The call that the page stands for, at its foot. */
export const shownCall = signal(null);
export function useCall(cli, api) {
  useEffect(() => {
    shownCall.value = { cli, api };
  }, [cli, api]);
}
