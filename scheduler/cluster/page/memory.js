// The memory of a rank over a step of a graph job: what lives while each op runs.

import {$, size, unit} from "./format.js";
import {Plot} from "./plot.js";
import {element, keep, setText} from "./rows.js";

let ranks = [], plot = null, cursor = null; // cursor: index of a point

export function setUpMemory() {
  $("memory-rank").addEventListener("input", () => {
    cursor = null;
    draw();
  });
  const node = $("memory");
  new ResizeObserver(draw).observe(node);
  node.addEventListener("pointermove", event => plot && read(nearest(plot.under(event.clientX))));
  node.addEventListener("pointerleave", () => read(null));
  node.addEventListener("keydown", onKey);
}

export function showMemory(found) {
  ranks = found;
  cursor = null;
  keep($("memory-rank"), ranks, own => own.rank, value => element("option", {value}),
    (option, own) => setText(option, "rank " + own.rank + (own.alike > 1 ? " and " + (own.alike - 1) + " alike" : "")));
  draw();
}

const chosen = () => ranks.find(own => String(own.rank) === $("memory-rank").value);

// Steps from zero: the line stays while an op runs.
function draw() {
  const own = chosen();
  $("memory-part").hidden = !own?.points.length;
  if (!own?.points.length || !$("memory").clientWidth) return;
  const {points, ops} = own;
  const scale = unit(own.peak[1]), [factor] = scale;
  const tops = points.flatMap(([at, nbytes], i) => [at, middle(i), end(i)].map(x => [x, nbytes / factor]));
  const pairs = [[0, 0], ...tops, [ops, 0]];
  plot = new Plot($("memory"), [{pairs, shown: pairs, kind: "own"}], false, {x: String, y: y => size(y * factor, scale)});
  const most = "Most at " + place(own.peak);
  $("memory").setAttribute("aria-label", "memory of rank " + own.rank + " over a step. " + most);
  setText($("memory-note"), most + ". All the time: variables " + size(own.variables) + ", registers " +
    size(own.registers) + ". As planned, before kernels are joined.");
  read(cursor);
}

const end = i => chosen().points[i + 1]?.[0] ?? chosen().ops;
const middle = i => (chosen().points[i][0] + end(i)) / 2;
const place = ([at, nbytes, op, module]) => "op " + at + ", " + op + (module && " of " + module) + ": " + size(nbytes);

// The point of the op that runs at x.
function nearest(x) {
  const later = chosen().points.findIndex(([at]) => at > x);
  return (later < 0 ? chosen().points.length : Math.max(later, 1)) - 1;
}

function read(at) {
  cursor = at;
  const point = chosen()?.points[at];
  plot?.point(point ? middle(at) : null);
  setText($("memory-reading"), point ? place(point) : "");
}

function onKey(event) {
  const way = {ArrowLeft: -1, ArrowRight: 1}[event.key], points = chosen()?.points;
  if (!way || !points) return;
  event.preventDefault();
  read(Math.min(Math.max((cursor ?? (way > 0 ? -1 : points.length)) + way, 0), points.length - 1));
}
