// The dialog of a change: what it does, its plan, the command and the call that it is, and what the server answered.
//
// Rule: the plan is shown before the change can be applied, and the change names the tag that the plan was made with. If
// somebody else has changed the item meanwhile, nothing happens, and the dialog shows the difference.

import { html, signal, useEffect, useRef, useState } from "./vendor/console.js";
import { call, curl } from "./api.js";
import { Button, Copied, Failure } from "./kit.js";
import { Difference, Plan } from "./plan.js";
import { may } from "./state.js";

const open = signal(null);

/** Show the dialog of an action; `done` is called once the change was applied. */
export function ask(action, done) {
  open.value = { action, done };
}

export const Dialog = () => (open.value ? html`<${Asked} key=${open.value.action.title} ...${open.value} />` : null);

const initial = (field) => String(field.value ?? optionsOf(field)[0]?.[0] ?? "");
const optionsOf = (field) => (field.options ?? []).map((one) => (Array.isArray(one) ? one : [one, one]));

function Asked({ action, done }) {
  const box = useRef(null);
  const [values, setValues] = useState(() => Object.fromEntries(action.fields.map((field) => [field.key, initial(field)])));
  const [planned, setPlanned] = useState(null); // {plan, etag, before}
  const [error, setError] = useState(null);
  const [conflict, setConflict] = useState(null);
  const [busy, setBusy] = useState(false);
  const made = action.make(values);
  const complete = action.fields.every((field) => !field.required || String(values[field.key]).trim());

  useEffect(() => box.current.showModal(), []);
  useEffect(() => {
    if (!complete) return undefined;
    const stop = new AbortController();
    const timer = setTimeout(() => plan(action, made, stop.signal).then(
      (found) => (setPlanned(found), setError(null)),
      (problem) => problem.name !== "AbortError" && (setPlanned(null), setError(problem)),
    ), action.fields.length ? 250 : 0);
    return () => (clearTimeout(timer), stop.abort());
  }, [JSON.stringify(values), conflict]);

  const close = () => {
    open.value = null;
  };
  const apply = async (event) => {
    event.preventDefault();
    setBusy(true);
    try {
      const { data } = await call(made.method, made.path, { body: made.body, etag: planned?.etag });
      close();
      done?.(data);
    } catch (problem) {
      if (problem.code === "changed") setConflict({ before: planned?.before, now: problem.body.now });
      else setError(problem);
    } finally {
      setBusy(false);
    }
  };
  const allowed = may("operate");
  return html`<dialog ref=${box} class="action" aria-labelledby="action-title" onClose=${close}>
    <form method="dialog" onSubmit=${apply}>
      <h2 id="action-title">${action.title}</h2>
      <p>${action.text}</p>
      ${action.fields.map((field) => html`<${Field} key=${field.key} field=${field} value=${values[field.key]}
        onInput=${(value) => setValues({ ...values, [field.key]: value })} />`)}
      ${conflict && html`<div class="conflict" role="alert"><strong>Changed by someone else.</strong>
        <p>Nothing was applied. This is the difference between your view and the present state; the plan below is new.</p>
        <${Difference} before=${conflict.before} after=${conflict.now} /></div>`}
      ${planned?.plan && html`<${Plan} plan=${planned.plan} />`}
      ${planned?.note && html`<p>${planned.note}</p>`}
      <${Failure} error=${error} />
      <div class="calls">
        <${Copied} label="command" text=${made.cli} />
        <${Copied} label="API" text=${curl(made)} />
      </div>
      <footer>
        ${!allowed && html`<span class="muted">Your token may only read.</span>`}
        <${Button} onClick=${() => box.current.close()}>Cancel<//>
        <${Button} type="submit" kind=${action.danger ? "danger" : "primary"} disabled=${busy || !complete || !allowed}>${action.verb ?? "Apply"}<//>
      </footer>
    </form>
  </dialog>`;
}

function Field({ field, value, onInput }) {
  const input = (event) => onInput(event.target.value);
  if (field.options) {
    return html`<label>${field.name}<select value=${value} onChange=${input}>
      ${optionsOf(field).map(([key, name]) => html`<option key=${key} value=${key}>${name}</option>`)}</select></label>`;
  }
  if (field.type === "area") return html`<label>${field.name}<textarea rows="6" spellcheck="false" value=${value} onInput=${input} /></label>`;
  return html`<label>${field.name}<input type=${field.type ?? "text"} step="any" value=${value} required=${field.required} onInput=${input} /></label>`;
}

/** The item's tag now, and the plan of the change. */
async function plan(action, made, signal) {
  const item = action.item ? await call("GET", action.item, { signal }) : null;
  const found = { etag: item?.etag ?? null, before: item?.data ?? null, plan: null, note: null };
  if (!action.plan) return found;
  const inBody = action.sql || action.plan === "body";
  const { data, etag } = await call(made.method, inBody ? made.path : `${made.path}?dry_run=true`, {
    body: inBody ? { ...made.body, dry_run: true } : made.body,
    signal,
  });
  if (action.sql) found.etag = etag;
  found.plan = data.plan ?? null;
  found.note = data.text ?? null;
  return found;
}
