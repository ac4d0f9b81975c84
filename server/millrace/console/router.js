// Pages are parts after "#/": one document, and a link for every page that can be sent to somebody else.

import { signal } from "./vendor/console.js";

const read = () => {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { parts: path.split("/").filter(Boolean).map(decodeURIComponent), query: new URLSearchParams(query) };
};

export const route = signal(read());

/** The address of a page. A query's empty values are left out. */
export function to(...parts) {
  const query = typeof parts.at(-1) === "object" ? parts.pop() : {};
  const rest = new URLSearchParams(Object.entries(query).filter(([, value]) => value)).toString();
  return `#/${parts.map(encodeURIComponent).join("/")}${rest ? `?${rest}` : ""}`;
}

export function go(...parts) {
  location.hash = to(...parts);
}

/** Change only the part after "?", without an entry in the browser's history. */
export function adjust(changes) {
  const { parts, query } = route.value;
  history.replaceState(null, "", to(...parts, { ...Object.fromEntries(query), ...changes }));
  route.value = read();
}

export function startRouter() {
  addEventListener("hashchange", () => {
    route.value = read();
  });
}
