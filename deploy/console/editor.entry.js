// What the SQL editor imports from "./vendor/editor.js"; no other page loads it.
export { Compartment, EditorState, RangeSetBuilder, StateEffect, StateField } from "@codemirror/state";
export {
  Decoration, EditorView, drawSelection, highlightActiveLine, highlightActiveLineGutter, highlightSpecialChars, keymap,
  lineNumbers, placeholder,
} from "@codemirror/view";
export { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
export { autocompletion, acceptCompletion, closeBrackets, closeBracketsKeymap, completionKeymap } from "@codemirror/autocomplete";
export { forEachDiagnostic, lintGutter, lintKeymap, linter, setDiagnostics } from "@codemirror/lint";
export { HighlightStyle, bracketMatching, indentOnInput, syntaxHighlighting } from "@codemirror/language";
export { SQLDialect, sql } from "@codemirror/lang-sql";
export { tags } from "@lezer/highlight";
