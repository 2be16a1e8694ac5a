// Words and numbers as people read them.

export const $ = id => document.getElementById(id);
export const short = matchMedia("(max-width: 62em)");

export function duration(seconds) {
  if (!(seconds >= 0)) return "";
  if (seconds < 10) return seconds.toFixed(1) + " s";
  if (seconds < 60) return Math.floor(seconds) + " s";
  const [d, h, m, s] = [seconds / 86400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60].map(Math.floor);
  const two = n => String(n).padStart(2, "0");
  if (d) return d + "d " + two(h) + "h";
  return h ? h + "h " + two(m) + "m" : m + "m " + two(s) + "s";
}

export function number(value, digits = 5) {
  if (value === null || value === undefined) return "not finite";
  const size = Math.abs(value);
  if (size && (size >= 1e7 || size < 1e-4)) return value.toExponential(digits - 2);
  return String(Number(value.toPrecision(digits)));
}

// The largest unit of which there is one: its bytes and its name.
export function unit(nbytes) {
  const power = Math.min(Math.max(Math.floor(Math.log2(nbytes || 1) / 10), 0), 4);
  return [1024 ** power, ["B", "KiB", "MiB", "GiB", "TiB"][power]];
}

export function size(nbytes, [factor, name] = unit(nbytes)) {
  return number(nbytes / factor, 3) + " " + name;
}

export const percent = share => (100 * share).toFixed(share < .1 ? 1 : 0) + " %";
export const clock = at => at ? new Date(1000 * at).toLocaleString() : "";
export const isEnded = job => Boolean(job.finished_at);

export function steps(job) {
  if (job.total_steps) return job.step + " / " + job.total_steps;
  return job.step ? "step " + job.step : "";
}

export function setBar(bar, job) {
  bar.hidden = !job.total_steps;
  bar.max = job.total_steps || 1;
  bar.value = Math.min(job.step, job.total_steps);
}

export function runTime(job, now) {
  return job.started_at ? (job.finished_at || now) - job.started_at : NaN;
}

export const why = job => job.pending || job.cause || "";
export const label = job => job.name || job.id;
