// The curve of one metric of the chosen job.

import {ask, jobPath} from "./api.js";
import {$} from "./format.js";
import {setText} from "./rows.js";

let curve = {job: "", next: 0, points: []};

export async function followCurve(job) {
  if (curve.job !== job.id) curve = {job: job.id, next: 0, points: []};
  const own = curve, found = await ask(jobPath(job.id, "/points"), {from: own.next});
  if (own !== curve) return;
  curve.points.push(...found.points);
  curve.next = found.next;
  const names = [...new Set(curve.points.flatMap(p => Object.keys(p.values)))].sort();
  const select = $("metric"), before = select.value;
  if (names.join() !== [...select.options].map(o => o.value).join()) {
    select.replaceChildren(...names.map(name => new Option(name, name)));
    select.value = names.includes(before) ? before : names.includes("loss") ? "loss" : names[0] || "";
  }
  draw(select.value);
}

function draw(name) {
  const points = curve.points.filter(p => Number.isFinite(p.values[name]));
  const xs = points.map(p => p.step), ys = points.map(p => p.values[name]);
  const least = a => a.reduce((x, y) => Math.min(x, y), Infinity);
  const most = a => a.reduce((x, y) => Math.max(x, y), -Infinity);
  const x0 = least(xs), y0 = least(ys), dx = most(xs) - x0 || 1, dy = most(ys) - y0 || 1;
  const at = (x, y) => (1000 * (x - x0) / dx).toFixed(1) + "," + (290 - 280 * (y - y0) / dy).toFixed(1);
  $("path").setAttribute("d", points.map((p, i) => (i ? "L" : "M") + at(xs[i], ys[i])).join(""));
  setText($("low"), points.length ? "step " + x0 : "no points yet");
  setText($("high"), points.length ? "step " + most(xs) : "");
  const marks = {bottom: y0, middle: y0 + dy / 2, top: y0 + dy};
  for (const id in marks) setText($(id), points.length ? marks[id].toPrecision(4) : "");
}

$("metric").addEventListener("change", () => draw($("metric").value));
