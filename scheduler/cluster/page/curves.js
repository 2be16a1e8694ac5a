// The curves of the chosen job, and of another one beside it.

import {ask, jobPath} from "./api.js";
import {$, duration, isEnded, label, number} from "./format.js";
import {Plot, smoothed} from "./plot.js";
import {element, keep, setText} from "./rows.js";

const STEP = "step", PACE = "steps/s", PACE_S = 1;
const series = new Map(); // job -> {next, points, seen, isOver}; seen: its steps while this page looked
let plot = null, cursor = null, shown = [];

export function setUpCurves() {
  for (const id of ["metric", "beside", "axis", "log-scale", "smooth"]) $(id).addEventListener("input", draw);
  new ResizeObserver(draw).observe($("curve"));
  const node = $("curve");
  node.addEventListener("pointermove", event => plot && read(plot.under(event.clientX)));
  node.addEventListener("pointerleave", () => read(null));
  node.addEventListener("keydown", onKey);
}

export async function followCurve(job, jobs) {
  fillBeside(job, jobs);
  const other = jobs.find(each => each.id === $("beside").value);
  shown = other ? [job, other] : [job];
  await Promise.all(shown.map(follow));
  fillMetrics(shown.map(each => series.get(each.id)));
  draw();
}

async function follow(job) {
  let own = series.get(job.id);
  if (!own || own.submitted_at !== job.submitted_at) {
    own = {submitted_at: job.submitted_at, next: 0, points: [], seen: [], isOver: false};
    series.set(job.id, own);
  }
  if (job.step && own.seen.at(-1)?.step !== job.step) own.seen.push({step: job.step, at: Date.now() / 1000});
  if (own.isOver) return;
  const isLast = isEnded(job), from = own.next;
  const found = await ask(jobPath(job.id, "/points"), {from});
  if (own.next !== from) return; // another answer was faster
  for (const point of found.points) add(own.points, point);
  own.next = found.next;
  own.isOver = isLast && !found.points.length;
}

// Steps that were done again, after a restart, are those of the later attempt.
function add(points, point) {
  while (points.length && points.at(-1).attempt < point.attempt && points.at(-1).step >= point.step) points.pop();
  points.push(point);
}

function fillBeside(job, jobs) {
  const others = jobs.filter(each => each.id !== job.id && each.attempt);
  keep($("beside"), [{id: ""}, ...others], each => each.id, value => element("option", {value}),
    (option, each) => setText(option, each.id ? label(each) + (each.name ? " (" + each.id + ")" : "") : "no other job"));
}

function fillMetrics(all) {
  const told = new Set(all.flatMap(own => own.points.slice(-200).concat(own.points.slice(0, 200))
    .flatMap(point => Object.keys(point.values))));
  const names = [...told].sort();
  if (all.some(own => steps(own).length > 1)) names.push(STEP, PACE);
  const select = $("metric"), before = select.value;
  keep(select, names, name => name, value => element("option", {value, textContent: value}), () => {});
  select.value = names.includes(before) ? before : names.includes("loss") ? "loss" : names[0] || "";
  $("curves").classList.toggle("empty", !names.length);
}

const steps = own => own.points.length ? own.points : own.seen;

function pairsOf(own, metric, byTime) {
  const points = steps(own), begin = points[0]?.at;
  const x = point => byTime ? point.at - begin : point.step;
  if (metric === STEP) return points.map(point => [x(point), point.step]);
  if (metric === PACE) return paces(points).map(([point, pace]) => [x(point), pace]);
  return points.filter(point => point.values && metric in point.values)
    .map(point => [x(point), point.values[metric]]);
}

function paces(points) {
  const found = [];
  let before = points[0];
  for (const point of points) {
    const took = point.at - before.at;
    if (point.step < before.step) before = point;
    else if (took >= PACE_S) {
      found.push([point, (point.step - before.step) / took]);
      before = point;
    }
  }
  return found;
}

function draw() {
  if (!$("curve").clientWidth) return;
  const metric = $("metric").value, byTime = $("axis").value === "time" || metric === STEP;
  const weight = Number($("smooth").value);
  setText($("smoothness"), weight ? weight.toFixed(2) : "off");
  const curves = shown.map((job, i) => {
    const pairs = pairsOf(series.get(job.id), metric, byTime);
    return {pairs, shown: smoothed(pairs, weight), kind: i ? "other" : "own"};
  });
  const words = {x: byTime ? x => duration(x) || "0 s" : x => number(x), y: y => number(y, 4)};
  plot = new Plot($("curve"), curves, $("log-scale").checked, words);
  $("curve").setAttribute("aria-label", metric + " of " + shown.map(label).join(" and "));
  read(cursor);
}

function onKey(event) {
  const way = {ArrowLeft: -1, ArrowRight: 1}[event.key];
  const points = plot?.curves[0]?.points || [];
  if (!way || !points.length) return;
  event.preventDefault();
  const at = cursor === null ? points.length - 1 : points.findIndex(([x]) => x >= cursor);
  read(points[Math.min(Math.max((at < 0 ? points.length - 1 : at) + way, 0), points.length - 1)][0]);
}

// Tells the values at x; null: the last ones.
function read(x) {
  cursor = x;
  if (!plot) return;
  const byTime = $("axis").value === "time" || $("metric").value === STEP;
  const found = plot.point(x === null ? plot.x[1] : x);
  if (x === null) plot.point(null);
  const told = found.map((point, i) => {
    if (!point) return {job: shown[i], text: "no points yet"};
    const place = byTime ? "after " + (duration(point.x) || "0 s") : "step " + number(point.x, 9);
    const raw = point.raw === point.y ? "" : ", unsmoothed " + number(point.raw);
    return {job: shown[i], text: place + ": " + number(point.y) + raw};
  });
  keep($("reading"), told, ({job}) => job.id, () => element("p", {}, element("i"), element("b"), " ", element("span")),
    (line, {job, text}) => {
      line.className = job === shown[0] ? "own" : "other";
      setText(line.children[1], label(job));
      setText(line.children[2], text);
    });
}
