// A trial of a strategy: measure, try, compare, and keep it or go back.

import { html, useState } from "./vendor/console.js";
import { call, curl, get, path, quoted } from "./api.js";
import { setStrategy } from "./actions.js";
import { ask } from "./dialog.js";
import { bytes, count, percent, rate, span } from "./format.js";
import { Button, Copied, Failure, State, useAnswer } from "./kit.js";
import { Difference } from "./plan.js";
import { may } from "./state.js";

/** The measures of a span; `better` is the direction that is good. */
const MEASURES = [
  ["Latency p50", (one) => one.p50_us, span, -1], ["Latency p99", (one) => one.p99_us, span, -1],
  ["Latency, greatest", (one) => one.max_us, span, -1], ["Queue, mean", (one) => one.queue_mean, count, -1],
  ["Queue, peak", (one) => one.queue_peak, count, -1],
  ["Memory, mean", (one) => one.memory_mean_bytes, bytes, -1], ["Memory, peak", (one) => one.memory_peak_bytes, bytes, -1],
  ["Idle-waiting", (one) => one.idle, percent, -1],
  ["Rows", (one) => (one.seconds ? one.rows / one.seconds : null), rate, 1], ["Steps", (one) => one.steps_per_second, rate, 0],
];

export function TrialPanel({ component, strategy }) {
  const address = path("components", component.name, "trial");
  const { data: trial, error, again } = useAnswer(async () => (await get(path("trials"))).find((one) => one.component === component.name) ?? null, [component.name], 1);
  const [seconds, setSeconds] = useState("30");
  const [condition, setCondition] = useState("p99 > 2x");
  const [problem, setProblem] = useState(null);
  // The component as it was when the strategy was chosen: a trial of another one is not what the table above shows.
  const { data: seen, again: seeAgain } = useAnswer(() => (strategy ? call("GET", path("components", component.name)) : Promise.resolve(null)), [component.name, strategy]);
  const [conflict, setConflict] = useState(null);
  const running = trial && trial.state !== "ended";
  const body = { strategy, for: `${seconds}s`, before: `${seconds}s`, revert_if: condition || null };
  const cli = `millrace strategy try ${quoted(component.name)} ${strategy} --for ${seconds}s --before ${seconds}s${condition ? ` --revert-if ${quoted(condition)}` : ""}`;
  const send = (method, what, etag) => async () => {
    try {
      await call(method, address, { body: what, etag });
      setProblem(null);
    } catch (refused) {
      setProblem(refused);
      if (refused.code === "changed") setConflict({ before: seen.data, now: refused.body.now });
    }
    seeAgain();
    again();
  };
  return html`
    ${strategy && !running && html`<form class="trial-form" onSubmit=${(event) => (event.preventDefault(), setConflict(null), send("POST", body, seen?.etag)())}>
      <label class="inline">Try it for <input type="number" min="1" max="3600" value=${seconds} onInput=${(event) => setSeconds(event.target.value)} /> seconds</label>
      <label class="inline">and revert if <input type="text" value=${condition} onInput=${(event) => setCondition(event.target.value)} placeholder="p99 > 200ms" /></label>
      <${Button} type="submit" kind="primary" disabled=${!may("operate") || !seen}>Try ${strategy}<//>
      <div class="calls"><${Copied} label="command" text=${cli} /><${Copied} label="API" text=${curl({ method: "POST", path: address, body })} /></div>
    </form>`}
    <${Failure} error=${problem ?? error} />
    ${conflict && html`<div class="conflict" role="alert"><strong>Changed by someone else.</strong><p>Nothing was tried. This is the difference; try again if you still want to.</p><${Difference} before=${conflict.before} after=${conflict.now} /></div>`}
    ${trial && html`<${Trial} trial=${trial} component=${component} cancel=${send("DELETE")} />`}`;
}

const OUTCOMES = { kept: "good", reverted: "warn", cancelled: "idle", failed: "bad" };

function Trial({ trial, component, cancel }) {
  const ended = trial.state === "ended";
  const total = trial.before_seconds + trial.for_seconds;
  const done = ended ? total : trial.state === "before" ? trial.before_seconds - trial.left_seconds : total - trial.left_seconds;
  const word = ended ? trial.outcome : trial.state === "before" ? `measuring ${trial.previous}` : `trying ${trial.strategy}`;
  return html`<section class="trial" aria-label="Trial">
    <header><h3>Trial: ${trial.previous} → ${trial.strategy}</h3><${State} word=${word} level=${ended ? OUTCOMES[trial.outcome] ?? "idle" : "warn"} />
      ${!ended && html`<progress max=${total} value=${done} aria-label="Progress of the trial"></progress><span>${span(Math.max(0, trial.left_seconds) * 1e6)} left</span>`}
      <div class="tools">
        ${!ended && html`<${Button} onClick=${cancel}>Revert now<//>`}
        ${ended && component.strategy === trial.strategy && html`<${Button} onClick=${() => ask(setStrategy(component.name, trial.previous))}>Revert to ${trial.previous}…<//>`}
        ${ended && component.strategy !== trial.strategy && html`<${Button} onClick=${() => ask(setStrategy(component.name, trial.strategy))}>Keep ${trial.strategy}…<//>`}
      </div></header>
    ${trial.reason && html`<p>${trial.reason}</p>`}
    ${trial.before && html`<table class="measures"><thead><tr><th scope="col">Measure</th><th scope="col" class="number">before (${trial.previous})</th><th scope="col" class="number">during (${trial.strategy})</th><th scope="col" class="number">change</th></tr></thead>
      <tbody>${MEASURES.map(([name, of, show, better]) => html`<${Measure} key=${name} name=${name} before=${of(trial.before)} during=${trial.during && of(trial.during)} show=${show} better=${better} />`)}</tbody></table>`}
  </section>`;
}

function Measure({ name, before, during, show, better }) {
  const ratio = before && during !== null && during !== undefined ? during / before : null;
  const verdict = ratio === null || !better || Math.abs(ratio - 1) < 0.1 ? "" : (ratio - 1) * better > 0 ? "better" : "worse";
  return html`<tr><th scope="row">${name}</th><td class="number">${show(before)}</td><td class="number">${show(during)}</td>
    <td class=${`number is-${verdict}`}>${ratio === null ? "–" : `× ${ratio.toPrecision(2)}`} ${verdict}</td></tr>`;
}
