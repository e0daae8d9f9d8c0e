// Numbers and times as people read them.

const UNITS = [[86400, "d"], [3600, "h"], [60, "min"]];

export function span(seconds) {
  for (const [unit, name] of UNITS) if (seconds >= 2 * unit) return `${Math.round(seconds / unit)} ${name}`;
  return `${Math.max(0, Math.round(seconds))} s`;
}

export const now = () => Date.now() / 1000;
export const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString();
export const moment = (seconds) => new Date(seconds * 1000).toLocaleString();
export const percent = (part) => `${(100 * part).toFixed(1)}%`;

export function dollars(text, complete = true) {
  if (text === null || text === undefined) return "";
  const amount = Number(text);
  if (amount > 0 && amount < 0.005) return "< $0.01";
  return `${complete ? "" : "at least "}$${amount.toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 })}`;
}

export const number = (value) =>
  value === 0 ? "0" : Math.abs(value) >= 1e5 || Math.abs(value) < 1e-3 ? value.toExponential(2) : String(Number(value.toPrecision(4)));

export function bytes(size) {
  const names = ["B", "KiB", "MiB", "GiB", "TiB"];
  let rank = 0;
  while (size >= 1024 && rank < names.length - 1) { size /= 1024; rank += 1; }
  return `${rank ? size.toFixed(1) : size} ${names[rank]}`;
}
