// How numbers and times are written.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const one = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const significant = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });

export const count = (number) => whole.format(number);

export const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

/** A probability in percent: no more digits than it deserves, and never a false 0 or 100. */
export function percent(probability) {
  const value = 100 * probability;
  if (value > 0 && value < 1) return "< 1 %";
  if (value < 100 && value > 99) return "> 99 %";
  return `${whole.format(value)} %`;
}

export const score = (value) => value.toFixed(3).replace("-", "−");

export const points = (value) => one.format(value);

/** A number of any size, or whatever else a report holds, in a few characters. */
export function brief(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "number") return Number.isInteger(value) ? count(value) : significant.format(value);
  if (Array.isArray(value)) return value.map(brief).join(", ");
  if (typeof value === "object") return Object.entries(value).map(([name, inner]) => `${words(name)} ${brief(inner)}`).join(", ");
  return String(value);
}

export function bytes(value) {
  const units = ["bytes", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit ? one.format(value) : whole.format(value)} ${units[unit]}`;
}

/** snake_case as words. */
export const words = (name) => name.replaceAll("_", " ");

export function time(iso) {
  const moment = new Date(iso);
  if (Number.isNaN(moment.getTime())) return String(iso);
  const today = moment.toDateString() === new Date().toDateString();
  return moment.toLocaleString("en-GB", today ? { timeStyle: "short" } : { dateStyle: "medium", timeStyle: "short" });
}

/** How many characters a text has, as the service counts them: not the halves that JavaScript's strings are made of. */
export function characters(text) {
  let number = 0;
  for (const _ of text) number += 1;
  return number;
}
