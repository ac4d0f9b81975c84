// What the graph's side panel says of a stream, a query, or an arc.

import { html, signal, useEffect } from "./vendor/console.js";
import { get, path } from "./api.js";
import { clock, count, iso, rate, span } from "./format.js";
import { Button, Figure, Figures, Sentence, State, useAnswer } from "./kit.js";
import { Try } from "./overview.js";
import { to } from "./router.js";
import { find, speed, stateOf, stateOfStream, streamsOf, summary, waitsLong, world } from "./state.js";

// Since when operators wait, by name: `why` knows it, while this page has seen only what happened since it was opened.
const since = signal(new Map());
const MOST_WHYS = 6;

export const waitingSince = (operator) => since.value.get(operator.name) ?? operator.seen.blockedUs;

/** Ask about the operators that wait, once each. */
export function useSince(waiting) {
  const names = waiting.map(({ name }) => name).join();
  useEffect(() => {
    const fresh = waiting.filter(({ name }) => !since.value.has(name)).slice(0, MOST_WHYS);
    since.value = new Map([...since.value].filter(([name]) => waiting.some((operator) => operator.name === name)));
    for (const { name, queries } of fresh) {
      get(path("queries", queries[0], "why")).then((why) => {
        if (why.since && why.operator === name) since.value = new Map(since.value).set(name, why.since);
      }, () => null); // dropped meanwhile: its box has gone as well
    }
  }, [names]);
}

/** The sentence of `why` of a query, with since when and what would help. */
export function WhyWords({ query }) {
  const { data: why, error } = useAnswer(() => get(path("queries", query, "why")), [query], 2);
  if (!why) return html`<p>${error ? error.message : "…"}</p>`;
  return html`<div class="why-words" role="status"><p><${Sentence} text=${why.text} /></p>
    <dl class="facts">
      ${why.since && html`<dt>since</dt><dd title=${iso(why.since)}>${clock(why.since, world.value.at_us, 0)} (${span(world.value.at_us - why.since)})</dd>`}
      ${why.held > 0 && html`<dt>held back</dt><dd>${count(why.held)} tuples</dd>`}
      ${why.stream && html`<dt>stream</dt><dd><a href=${to("streams", why.stream)}>${why.stream}</a></dd>`}
      ${why.feed && html`<dt>feed</dt><dd><code>${why.feed}</code></dd>`}
      ${why.asked && html`<dt>requested</dt><dd>${clock(why.asked, world.value.at_us)}</dd>`}
      ${why.answered && html`<dt>answered</dt><dd>${clock(why.answered, world.value.at_us)}</dd>`}
    </dl>
    ${why.try && html`<${Try} command=${why.try} />`}</div>`;
}

/** An arc: why somebody waits for it, or how much waits in it. */
export function WhyBox({ edge, held }) {
  const readers = edge.arcs.map(([name, index]) => [find("operators", name), index]).filter(([operator]) => operator);
  const query = held ? waitingQuery(edge, readers) : null;
  return html`<h2>${held ? "Why" : "Arc"}</h2>
    ${query && html`<${WhyWords} query=${query} />`}
    ${readers.slice(0, 8).map(([operator, index]) => html`<${InputFacts} key=${operator.name} operator=${operator} index=${index} />`)}
    ${edge.from.startsWith("feed:") && html`<${StreamBox} stream=${find("streams", edge.from.slice(5))} />`}`;
}

/** The query of the operator that waits: the reader itself, or one downstream. */
function waitingQuery(edge, readers) {
  const direct = readers.map(([operator]) => operator).find(waitsLong);
  if (direct) return direct.queries[0];
  const waits = [...world.value.operators.values()].filter(waitsLong);
  const stream = edge.from.startsWith("feed:") ? edge.from.slice(5) : null;
  const reads = (operator) => operator.queries.some((name) => (stream ? streamsOf(find("queries", name)).includes(stream) : readers.some(([reader]) => reader.queries.includes(name))));
  return (waits.find(reads) ?? waits[0])?.queries[0] ?? null;
}

function InputFacts({ operator, index }) {
  const input = operator.inputs[index];
  return html`<dl class="facts"><dt>from</dt><dd>${input.from}</dd><dt>to</dt><dd><a href=${to("operators", operator.name)}>${operator.name}</a>, input ${index}</dd>
    <dt>queued</dt><dd>${count(input.queue_tuples)} (at most ${count(input.peak_queue_tuples)})</dd>
    <dt>queue</dt><dd>${input.queue?.kind ?? operator.queues[index] ?? "append"}</dd>
    ${input.register_us !== null && html`<dt>register</dt><dd>${iso(input.register_us)}</dd>`}
    <dt>held others back</dt><dd>${span(input.idle_wait_us)} in all</dd></dl>`;
}

export function StreamBox({ stream }) {
  if (!stream) return null;
  return html`<h2><a href=${to("streams", stream.name)}>${stream.name}</a></h2><p><${State} ...${stateOfStream(stream)} /></p>
    <${Figures}><${Figure} name="Tuples" value=${rate(speed(stream, "tuples"))} note=${`${count(stream.tuples)} in all`} /><${Figure} name="Late" value=${count(stream.late)} /><//>
    <dl class="facts"><dt>watermark</dt><dd>${iso(stream.mark_us)}</dd><dt>newest</dt><dd>${iso(stream.newest_us)}</dd><dt>disorder</dt><dd>${span(stream.disorder_us)}</dd></dl>
    <h3>Feeds</h3>
    ${stream.feeds.length ? html`<ul class="feeds">${stream.feeds.slice(0, 20).map((feed) => html`<li key=${feed.feed}><code>${feed.feed}</code> ${count(feed.tuples)} tuples, mark ${clock(feed.mark_us, world.value.at_us)}</li>`)}</ul>`
      : html`<p>No client feeds it.</p><${Try} command=${`millrace feed ${stream.name} FILE`} />`}`;
}

export function QueryBox({ query, unfold }) {
  if (!query) return null;
  const numbers = summary(query);
  return html`<h2><a href=${to("queries", query.name)}>${query.name}</a></h2><p class="tools"><${State} ...${stateOf(query)} />${unfold && html`<${Button} onClick=${unfold}>Unfold<//>`}</p>
    <${Figures}><${Figure} name="Rows" value=${rate(numbers.rate)} note=${`${count(query.rows)} in all`} /><${Figure} name="Lag" value=${span(numbers.lag_us)} /><${Figure} name="Waiting" value=${count(numbers.held)} /><//>
    <h3>Why</h3><${WhyWords} query=${query.name} />`;
}
