// The server's HTTP API. Rule: a change is marked as the console's own (`x-millrace-console`), because a page of another
// site cannot set that header; every refusal becomes a Problem, which people can read.

export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || body.title || `The server answered with ${status}.`);
    this.status = status;
    this.code = body.code;
    this.body = body;
  }
}

export const path = (...parts) => `/api/v1/${parts.map(encodeURIComponent).join("/")}`;

/** A request; returns the answer's data and its ETag. */
export async function call(method, address, { body, etag, signal } = {}) {
  const headers = {};
  if (body !== undefined) headers["content-type"] = "application/json";
  if (method !== "GET") headers["x-millrace-console"] = "1";
  if (etag) headers["if-match"] = etag;
  let answer;
  try {
    answer = await fetch(address, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { detail: "The server cannot be reached.", code: "unreachable" });
  }
  const text = await answer.text();
  const data = text && /json/.test(answer.headers.get("content-type") ?? "") ? JSON.parse(text) : text;
  if (!answer.ok) throw new Problem(answer.status, typeof data === "object" ? data : { detail: text });
  return { data, etag: answer.headers.get("etag"), status: answer.status };
}

export const get = async (address, options) => (await call("GET", address, options)).data;

/** The objects of a stream of JSON lines, as they arrive. */
export async function* lines(address, signal) {
  let answer;
  try {
    answer = await fetch(address, { signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { detail: "The server cannot be reached.", code: "unreachable" });
  }
  if (!answer.ok) {
    const text = await answer.text();
    throw new Problem(answer.status, /json/.test(answer.headers.get("content-type") ?? "") ? JSON.parse(text) : { detail: text });
  }
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    for (const line of parts) if (line) yield JSON.parse(line);
  }
}

/** A call as a command for a shell. */
export function curl({ method, path: address, body }) {
  const parts = ["curl", method === "GET" ? "" : `-X ${method}`, quoted(location.origin + address)];
  if (body !== undefined) parts.push("-H 'content-type: application/json'", `-d ${quoted(JSON.stringify(body))}`);
  return parts.filter(Boolean).join(" ");
}

/** A word of a shell's command. */
export function quoted(text) {
  return /^[\w.,:/@%+=-]+$/.test(text) ? text : `'${String(text).replaceAll("'", `'\\''`)}'`;
}
