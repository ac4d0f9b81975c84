// The frame of every page: navigation, the state of the connection, and the call that the page is.

import { html, useEffect, useRef, useState } from "./vendor/console.js";
import { call, path } from "./api.js";
import { Dialog } from "./dialog.js";
import { bytes, clock, percent } from "./format.js";
import { Button, Copied, State, shownCall } from "./kit.js";
import { route, to } from "./router.js";
import { all, connection, newestChange, session, start, stateOf, world } from "./state.js";
import { theme, turnTheme } from "./theme.js";

const PAGES = [
  ["overview", "Overview"], ["graph", "Graph"], ["queries", "Queries"], ["streams", "Streams"], ["sinks", "Sinks"],
  ["components", "Components"], ["editor", "Editor"], ["history", "History"], ["changes", "Changes"], ["log", "Log"],
];
const OBJECTS = { operators: "components" }; // pages without an entry of their own

export function Shell({ page, children }) {
  const main = useRef(null);
  const place = route.value.parts.join("/");
  useEffect(() => {
    document.title = [...route.value.parts].reverse().concat("Millrace").join(" · ");
    scrollTo(0, 0);
    document.querySelector(".bar [aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });
  }, [place]);
  if (connection.value.state === "login") return html`<${Login} />`;
  const ready = world.value.server !== null;
  return html`<div class="shell">
    <a class="skip" href="#main" onClick=${(event) => (event.preventDefault(), main.current.focus())}>Skip to the content</a>
    <header class="bar">
      <a class="brand" href="#/"><svg viewBox="0 0 32 32" aria-hidden="true"><path d="M3 11h11l5 5h10M3 21h11l5-5" /></svg>Millrace</a>
      <nav aria-label="Pages">${PAGES.map(([key, name]) => html`
        <a key=${key} href=${to(key)} aria-current=${key === (OBJECTS[page] ?? page) ? "page" : undefined}>${name}<${Badge} page=${key} /></a>`)}</nav>
      <${Status} />
    </header>
    <${Notice} />
    <main id="main" ref=${main} tabindex="-1">${ready ? children : html`<p class="empty">Connecting…</p>`}</main>
    <${Foot} />
    <${Dialog} />
  </div>`;
}

/** How many queries are in trouble. */
function Badge({ page }) {
  if (page !== "queries") return null;
  const bad = all("queries").filter((query) => stateOf(query).level === "bad").length;
  return bad ? html`<span class="badge" title=${`${bad} in trouble`}>${bad}</span>` : null;
}

function Status() {
  const { server, at_us } = world.value;
  const { state } = connection.value;
  const memory = server?.memory;
  const [word, level] = { live: ["live", "good"], lost: ["disconnected", "bad"], connecting: ["connecting", "idle"] }[state];
  return html`<div class="status">
    <${State} word=${word} level=${level} />
    ${server && html`<span class="fact" title="The server's clock, UTC">${clock(at_us, null, 0)}</span>
      ${server.overload && html`<span class="fact wide" title="The share of the last seconds that the engine worked">load ${percent(server.overload.load)}</span>`}
      ${memory && html`<span class="fact wide" title="Memory of the server">${bytes(memory.used_bytes)}</span>`}`}
    <${Button} kind="quiet" onClick=${turnTheme} label=${`Colours: ${theme.value}`} title=${`Colours: ${theme.value}`}>${{ auto: "◐", light: "○", dark: "●" }[theme.value]}<//>
    ${session.value?.auth === "token" && html`<${Button} kind="quiet" onClick=${logout} title=${`Token ${session.value.name}`}>Log out<//>`}
  </div>`;
}

async function logout() {
  await call("POST", path("console", "logout")).catch(() => null);
  start();
  connection.value = { state: "login" };
}

/** What a person must know wherever they are: that what they see is old, or that somebody has changed something. */
function Notice() {
  const { state, text } = connection.value;
  const [shown, setShown] = useState(null);
  const change = newestChange.value;
  useEffect(() => {
    if (!change) return undefined;
    setShown(change);
    const timer = setTimeout(() => setShown(null), 8000);
    return () => clearTimeout(timer);
  }, [change]);
  return html`<div class="notices" aria-live="polite">
    ${state === "lost" && html`<p class="notice is-bad"><strong>Disconnected.</strong> ${text} The numbers below are those of ${clock(world.value.at_us, null, 0)}. Trying again…</p>`}
    ${shown && html`<p class="notice">Change ${shown.number}: ${shown.text ?? ""} <a href=${to("changes")}>Show changes</a></p>`}
  </div>`;
}

/** The page as a command and as an API call. */
function Foot() {
  if (!shownCall.value) return null;
  const { cli, api } = shownCall.value;
  return html`<footer class="calls" aria-label="This page as a command">
    ${cli && html`<${Copied} label="command" text=${cli} />`}
    ${api && html`<${Copied} label="API" text=${`curl ${location.origin}${api}`} />`}
  </footer>`;
}

function Login() {
  const [error, setError] = useState(null);
  const [token, setToken] = useState("");
  const login = async (event) => {
    event.preventDefault();
    try {
      await call("POST", path("console", "login"), { body: { token: token.trim() } });
      setToken("");
      connection.value = { state: "connecting" };
      start();
    } catch (problem) {
      setError(problem.status === 401 ? "The server does not know this token." : problem.message);
    }
  };
  return html`<main class="login">
    <h1>Millrace</h1>
    <p>This server requires a token. Run <code>millrace console</code> on its machine for a link that opens this page, or enter a token.</p>
    <form onSubmit=${login}>
      <label>Token<input type="password" autocomplete="off" value=${token} required onInput=${(event) => setToken(event.target.value)} /></label>
      ${error && html`<p class="failure" role="alert">${error}</p>`}
      <${Button} type="submit" kind="primary">Log in<//>
    </form>
  </main>`;
}
