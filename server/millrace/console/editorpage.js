// The SQL editor: completion and diagnostics from the server while typing, the plan, and apply.

import { html, useEffect, useRef, useState } from "./vendor/console.js";
import { Problem, call, curl, path, quoted } from "./api.js";
import { Copied, Empty, Failure, Panel, Sql, useCall } from "./kit.js";
import { Lines, Plan, compared } from "./plan.js";
import { PreviewPanel, Price, previewOf } from "./preview.js";
import { find, may } from "./state.js";

const DRAFT = "millrace-draft";
const FIRST = "CREATE QUERY name AS\n  SELECT *\n  FROM stream\n";
const DRY_RUN_MS = 350;

const replacing = (sql) => sql.replace(/^\s*CREATE\s+QUERY/i, "CREATE OR REPLACE QUERY");

export function EditorPage({ name }) {
  useCall("millrace apply FILE.sql --plan", "/api/v1/sql");
  const query = name && find("queries", name);
  const holder = useRef(null);
  const editor = useRef(null);
  const [sql, setSql] = useState(() => (query ? replacing(query.sql) : localStorage.getItem(DRAFT) ?? FIRST));
  const [checked, setChecked] = useState({});
  const [applied, setApplied] = useState(null);
  const [conflict, setConflict] = useState(null);
  const [difference, setDifference] = useState(null);
  const [preview, setPreview] = useState(null);

  useEffect(() => {
    let gone = false;
    import("./sqleditor.js").then(({ makeEditor }) => {
      if (gone || !holder.current) return;
      editor.current = makeEditor(holder.current, sql, { change: setSql, apply: () => document.getElementById("apply").click() });
    });
    return () => {
      gone = true;
      editor.current?.destroy();
    };
  }, []);
  useEffect(() => {
    if (!name) localStorage.setItem(DRAFT, sql);
    const stop = new AbortController();
    const timer = setTimeout(() => check(sql, stop.signal).then((found) => {
      setChecked(found);
      editor.current?.diagnose(found.problem);
    }, () => null), DRY_RUN_MS);
    return () => (clearTimeout(timer), stop.abort());
  }, [sql, applied]);

  const apply = async () => {
    setConflict(null);
    try {
      const { data } = await call("POST", path("sql"), { body: { sql, idempotent: true }, etag: checked.etag });
      setApplied(data.statements);
    } catch (problem) {
      if (problem.code === "changed") {
        setConflict(problem.body);
        setChecked(await check(sql));
      } else setChecked({ ...checked, problem });
    }
  };
  const compare = async (event) => {
    const file = event.target.files[0];
    if (!file) return;
    try {
      const { data } = await call("POST", path("sql"), { body: { sql: await file.text(), dry_run: true, prune: true } });
      setDifference({ name: file.name, outcomes: data.statements });
    } catch (problem) {
      setDifference({ name: file.name, problem });
    }
    event.target.value = "";
  };
  const { plan, statements = [], problem } = checked;
  return html`
    <header class="head"><h1>${name ? `Edit ${name}` : "Editor"}</h1><div class="tools">
      <label class="button file">Compare with a file…<input type="file" accept=".sql,.txt" onChange=${compare} /></label>
      <button type="button" id="apply" class="primary" disabled=${Boolean(problem) || !plan || !may("change")} onClick=${apply} title="Ctrl+Enter">Apply</button></div></header>
    <div class="editor-page">
      <div class="editor-side">
        <div class="editor" ref=${holder}></div>
        ${problem && html`<pre class="failure diagnostic" role="alert">${problem.message}</pre>`}
        ${applied && html`<p class="success" role="status">Applied: ${applied.map((one) => `${one.kind.replace("_", " ")} ${one.name ?? ""}${one.unchanged ? " (unchanged)" : ""}`).join("; ")}.</p>`}
        ${conflict && html`<div class="conflict" role="alert"><strong>Changed by someone else.</strong> <p>${conflict.detail}. Nothing was applied; the plan is new now. The server's present text, compared with yours:</p><${Lines} lines=${compared(theirs(sql, name), sql.split("\n"))} /></div>`}
        ${difference && html`<${FileDifference} ...${difference} />`}
        <${PreviewPanel} sql=${sql} take=${setPreview} ready=${Boolean(plan) && !problem && checked.sql === sql && defines(statements)} />
      </div>
      <div class="editor-plan">
        <${Panel} title="Plan">
          ${statements.map((one, index) => html`<p key=${index}>${one.kind.replace("_", " ")} <strong>${one.name ?? ""}</strong>${one.replaces ? " (replaces it)" : ""}${one.unchanged ? " unchanged" : ""}</p>`)}
          ${statements.flatMap((one) => one.warnings ?? []).map((text) => html`<p key=${text} class="warning">${text}</p>`)}
          ${plan ? html`<${Plan} plan=${plan} />` : html`<${Empty}>${problem ? "There is no plan until the statement is right." : "Planning…"}<//>`}
          ${plan && html`<${Price} preview=${preview} />`}
        <//>
        <${Panel} title="As a command"><div class="calls">
          <${Copied} label="command" text=${`millrace sql ${quoted(sql)}`} /><${Copied} label="API" text=${curl({ method: "POST", path: path("sql"), body: { sql, idempotent: true } })} />
          <${Copied} label="preview" text=${`millrace sql --preview ${quoted(sql)}`} /><${Copied} label="API" text=${curl(previewOf(sql))} /></div><//>
        ${query && html`<${Panel} title="Running now"><${Sql} text=${query.sql} /><//>`}
      </div>
    </div>`;
}

/** Whether a statement defines a query, also one that is there already. */
const defines = (statements) => statements.some(({ kind }) => kind === "create_query" || kind === "select");

const theirs = (sql, name) => (find("queries", name ?? sql.match(/QUERY\s+(\w+)/i)?.[1])?.sql ?? "").split("\n");

/** The plan of the statements, or where they are wrong. */
async function check(sql, signal) {
  const { data, etag } = await call("POST", path("sql", "check"), { body: { sql }, signal });
  return { ...data, sql, etag, problem: data.problem && new Problem(400, data.problem) };
}

/** What \`apply --prune\` of a file would do. */
function FileDifference({ name, outcomes, problem }) {
  const changed = (outcomes ?? []).filter((one) => !one.unchanged);
  return html`<${Panel} title=${`Difference to ${name}`}>
    <${Failure} error=${problem} />
    ${outcomes && !changed.length && html`<p>The server equals the file.</p>`}
    ${changed.map((one, index) => html`<div key=${index}><p><strong>${one.name}</strong> ${one.before && one.after ? "differs" : one.after ? "is only in the file" : "is only on the server"}</p>
      <${Lines} lines=${compared((one.before ?? "").split("\n").filter(Boolean), (one.after ?? "").split("\n").filter(Boolean))} /></div>`)}
    <${Copied} label="command" text=${`millrace diff ${quoted(name)}`} /><//>`;
}
