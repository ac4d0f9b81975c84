// Values as people read them. Rule: a value that is not known is "–", never 0; times are UTC, as the server prints them.

export const NONE = "–";

/** A count: all digits below a million, then three of them. */
export function count(value) {
  if (value === null || value === undefined) return NONE;
  if (Math.abs(value) < 1e6) return Math.round(value).toLocaleString("en-GB");
  const units = [[1e12, "T"], [1e9, "G"], [1e6, "M"]];
  const [size, unit] = units.find(([bound]) => Math.abs(value) >= bound);
  return `${(value / size).toPrecision(3)} ${unit}`;
}

/** How many a second. */
export function rate(value) {
  if (value === null || value === undefined) return NONE;
  if (value === 0) return "0/s";
  if (value < 0.095) return "<0.1/s";
  return value < 10 ? `${value.toFixed(1)}/s` : `${count(value)}/s`;
}

export function counted(value, noun, plural = `${noun}s`) {
  return `${count(value)} ${value === 1 ? noun : plural}`;
}

/** A span of time with at most two units. */
export function span(us) {
  if (us === null || us === undefined) return NONE;
  if (us < 0) return `−${span(-us)}`;
  if (us === 0) return "0 s";
  if (us < 1e3) return `${us < 10 ? us.toFixed(1) : Math.round(us)} µs`;
  if (us < 1e6) return `${(us / 1e3).toFixed(us < 1e4 ? 1 : 0)} ms`;
  const seconds = us / 1e6;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.floor(seconds)} s`;
  const two = (big, bigUnit, small, smallUnit) => `${Math.floor(big)} ${bigUnit}${Math.floor(small) ? ` ${Math.floor(small)} ${smallUnit}` : ""}`;
  if (seconds < 3600) return two(seconds / 60, "min", seconds % 60, "s");
  if (seconds < 86400) return two(seconds / 3600, "h", (seconds / 60) % 60, "min");
  return two(seconds / 86400, "d", (seconds / 3600) % 24, "h");
}

export function iso(us) {
  return us === null || us === undefined ? NONE : new Date(us / 1e3).toISOString();
}

/** The time of day, with the date if that is not the day of `now`. */
export function clock(us, now, digits = 3) {
  if (us === null || us === undefined) return NONE;
  const text = new Date(us / 1e3).toISOString();
  const time = text.slice(11, digits ? 20 + digits : 19);
  return now && Math.abs(now - us) > 43_200e6 ? `${text.slice(0, 10)} ${time}` : time;
}

export function bytes(value) {
  if (value === null || value === undefined) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit && value < 100 ? value.toPrecision(3) : Math.round(value)} ${units[unit]}`;
}

export function percent(share) {
  if (share === null || share === undefined) return NONE;
  const value = share * 100;
  return `${value > 0 && value < 9.95 ? value.toFixed(1) : Math.round(value)} %`;
}

/** A cell of a row of data; six digits of a fraction are enough to look at. */
export function cell(value) {
  if (value === null || value === undefined) return "null";
  if (typeof value === "number" && !Number.isInteger(value)) return String(Number(value.toPrecision(6)));
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
