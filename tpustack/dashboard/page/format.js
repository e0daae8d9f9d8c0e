// Numbers and times as people read them.

/** A time of whole seconds, as `tpu_core.words.duration` has it. */
export function span(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 600) return two(whole, 60, "min", 1, "s");
  if (whole < 3570) return `${into(60, whole)} min`;
  if (whole < 2 * 86400) return two(60 * into(60, whole), 3600, "h", 60, "min");
  return two(3600 * into(3600, whole), 86400, "d", 3600, "h");
}

const into = (unit, seconds) => Math.floor((seconds + unit / 2) / unit);

function two(seconds, large, name, small, rest) {
  const second = Math.floor((seconds % large) / small);
  return `${Math.floor(seconds / large)} ${name}${second ? ` ${second} ${rest}` : ""}`;
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
