// The ledger of changes: who changed what, as which plan, and what undoes it.

import { html } from "./vendor/console.js";
import { get, path } from "./api.js";
import { undoChange } from "./actions.js";
import { ask } from "./dialog.js";
import { clock, iso } from "./format.js";
import { Button, Empty, Failure, Panel, Sql, State, useAnswer, useCall } from "./kit.js";
import { world } from "./state.js";

export function ChangesPage() {
  useCall("millrace changes", "/api/v1/changes");
  const { data, error, again } = useAnswer(() => get(`${path("changes")}?last=200`), [world.value.changes], 10);
  return html`<header class="head"><h1>Changes</h1></header>
    <${Failure} error=${error} />
    ${data && !data.length && html`<${Empty}>Nothing has been changed yet.<//>`}
    <ol class="ledger" reversed>${[...(data ?? [])].reverse().map((change) => html`<${Change} key=${change.number} change=${change} again=${again} />`)}</ol>`;
}

function Change({ change, again }) {
  const undone = change.undone_by !== null && change.undone_by !== undefined;
  const state = undone ? { word: `undone by ${change.undone_by}`, level: "idle" } : change.undoes ? { word: `undoes ${change.undoes}`, level: "warn" } : { word: "applied", level: "good" };
  return html`<li value=${change.number}><${Panel}>
    <header class="change"><strong class="number">${change.number}</strong><span class="what">${change.text}</span><${State} ...${state} />
      <span class="muted" title=${iso(change.at_us)}>${clock(change.at_us, world.value.at_us, 0)} · ${change.author}</span>
      <${Button} disabled=${undone || !change.inverse} title=${change.inverse ? "" : change.lost ?? "Nothing undoes it."} onClick=${() => ask(undoChange(change), again)}>Undo…<//>
    </header>
    ${change.lost && html`<p class="muted">${change.inverse ? "After an undo: " : "No undo: "}${change.lost}</p>`}
    <details><summary>${change.changes.map((one) => one.change).join(", ")}</summary>
      ${change.changes.map((one, index) => (one.sql ? html`<${Sql} key=${index} text=${one.sql} />` : html`<pre key=${index} class="plain" tabindex="0" aria-label="The change as data">${JSON.stringify(one, null, 2)}</pre>`))}
      ${change.inverse && html`<p class="muted">What undoes it:</p><pre class="plain" tabindex="0" aria-label="The inverse as data">${JSON.stringify(change.inverse, null, 2)}</pre>`}
    </details>
  <//></li>`;
}
