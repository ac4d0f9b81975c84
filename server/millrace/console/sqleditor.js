// CodeMirror for the editor's page. It lives in a shadow root: there its styles are style sheets made by script, which
// the page's policy allows; in the document they would be a <style> element, which it forbids.

import {
  EditorState, EditorView, HighlightStyle, SQLDialect, acceptCompletion, autocompletion, bracketMatching, closeBrackets,
  closeBracketsKeymap, completionKeymap, defaultKeymap, drawSelection, highlightActiveLine, highlightActiveLineGutter, highlightSpecialChars,
  history, historyKeymap, keymap, lineNumbers, lintGutter, setDiagnostics, sql, syntaxHighlighting, tags,
} from "./vendor/editor.js";
import { call, path } from "./api.js";

// Colours are the document's variables, which reach into the shadow root.
const THEME = EditorView.theme({
  "&": { color: "var(--ink)", backgroundColor: "var(--panel)", fontSize: "0.9rem", height: "100%" },
  "&.cm-focused": { outline: "2px solid var(--accent)", outlineOffset: "-2px" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.55" },
  ".cm-content": { caretColor: "var(--ink)", padding: "0.6rem 0" },
  ".cm-cursor": { borderLeftColor: "var(--ink)" },
  ".cm-gutters": { backgroundColor: "var(--panel)", color: "var(--muted)", border: "none" },
  ".cm-activeLine, .cm-activeLineGutter": { backgroundColor: "var(--hover)" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": { backgroundColor: "var(--selection)" },
  ".cm-tooltip": { backgroundColor: "var(--panel)", color: "var(--ink)", border: "1px solid var(--line-strong)", borderRadius: "4px" },
  ".cm-tooltip-autocomplete ul li[aria-selected]": { backgroundColor: "var(--accent)", color: "var(--on-accent)" },
  ".cm-completionDetail": { color: "inherit", opacity: "0.75", fontStyle: "normal" },
  ".cm-diagnostic": { fontFamily: "var(--mono)", whiteSpace: "pre" },
});
const COLOURS = HighlightStyle.define([
  { tag: tags.keyword, color: "var(--sql-word)" }, { tag: [tags.string, tags.special(tags.string)], color: "var(--sql-string)" },
  { tag: tags.number, color: "var(--sql-number)" }, { tag: tags.comment, color: "var(--muted)", fontStyle: "italic" },
  { tag: tags.typeName, color: "var(--sql-word)" },
]);
const DIALECT = SQLDialect.define({
  keywords: "add all alter and as asc between by case cast chronicle create cross delete desc describe distinct drop eager else end escape every exists explain filter followed from group having hop if in insert interval into is join latest lazy left like limit no not null on or order outer over partition query range recent replace rows select session set show sink slide stream then tumble unbounded union using values when where with within",
  types: "bigint boolean date double interval text timestamp varchar",
  operatorChars: "*+-%<>!=|/", doubleQuotedStrings: false,
});

/** An editor in `holder`; `change` gets its text, `apply` is Ctrl+Enter. */
export function makeEditor(holder, text, { change, apply }) {
  const root = holder.shadowRoot ?? holder.attachShadow({ mode: "open" });
  const view = new EditorView({
    root,
    parent: root,
    state: EditorState.create({
      doc: text,
      extensions: [
        lineNumbers(), highlightActiveLineGutter(), highlightSpecialChars(), history(), drawSelection(), bracketMatching(), closeBrackets(), highlightActiveLine(), lintGutter(), EditorView.lineWrapping,
        sql({ dialect: DIALECT }).language.extension, syntaxHighlighting(COLOURS), THEME,
        autocompletion({ override: [complete], activateOnTypingDelay: 120 }),
        EditorView.domEventHandlers({ beforeinput: replaceSelection }),
        EditorView.contentAttributes.of({ "aria-label": "SQL" }),
        // Tab leaves the editor unless there is something to complete: the keyboard must not be caught.
        keymap.of([{ key: "Mod-Enter", run: () => (apply(), true) }, { key: "Tab", run: acceptCompletion }, ...closeBracketsKeymap, ...completionKeymap, ...defaultKeymap, ...historyKeymap]),
        EditorView.updateListener.of((update) => update.docChanged && change(update.state.doc.toString())),
      ],
    }),
  });
  return {
    destroy: () => view.destroy(),
    /** Underline where the server found a mistake. */
    diagnose(problem) {
      const { line, column } = problem?.body ?? {};
      const { doc } = view.state;
      const found = [];
      if (line && line <= doc.lines) {
        const from = Math.min(doc.line(line).from + column - 1, doc.length);
        const word = doc.sliceString(from).match(/^\w+|^\S/)?.[0].length ?? 0;
        found.push({ from, to: Math.min(from + word, doc.length), severity: "error", message: problem.message });
      }
      view.dispatch(setDiagnostics(view.state, found));
    },
  };
}

/** Typing over a selection: Chromium would keep its colour as a style attribute, which the page's policy forbids. */
function replaceSelection(event, view) {
  if (event.inputType !== "insertText" || !event.data || view.composing || view.state.selection.main.empty) return false;
  event.preventDefault();
  view.dispatch(view.state.replaceSelection(event.data), { userEvent: "input.type", scrollIntoView: true });
  return true;
}

/** What the server offers at the cursor. */
async function complete(context) {
  const before = context.matchBefore(/[\w."]+$/);
  if (!before && !context.explicit && !/[.,(\s]$/.test(context.state.sliceDoc(Math.max(0, context.pos - 1), context.pos))) return null;
  try {
    const { data } = await call("POST", path("sql", "complete"), { body: { sql: context.state.doc.toString(), offset: context.pos } });
    if (!data.items.length || (!before && !context.explicit)) return null;
    return { from: data.from, options: data.items.map(({ text, kind, detail }) => ({ label: text, type: TYPES[kind] ?? "text", detail: detail || kind })), validFor: /^[\w]*$/ };
  } catch {
    return null; // completion is an offer: the editor works without it
  }
}

const TYPES = { keyword: "keyword", stream: "class", query: "class", column: "property", function: "function", option: "constant" };
