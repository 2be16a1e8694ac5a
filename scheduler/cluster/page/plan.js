// The plan of a graph job: a box for each actor, below those that it waits for.

import {ask, jobPath} from "./api.js";
import {$, size} from "./format.js";
import {showMemory} from "./memory.js";
import {svg} from "./plot.js";
import {setText, table} from "./rows.js";

const BOX = {width: 158, height: 46, gapX: 90, gapY: 44}, LABELLED = 60; // edges, at most
let drawn = ""; // of which job and attempt

export async function showPlan(job) {
  $("plan-part").hidden = job.kind === "script";
  const own = job.id + "/" + job.submitted_at + "/" + job.attempt;
  if (job.kind === "script" || !$("plan").open || drawn === own) return;
  const found = await ask(jobPath(job.id, "/plan"));
  drawn = found.why ? "" : own;
  $("drawing").hidden = $("plan-edges").hidden = Boolean(found.why);
  setText($("plan-note"), found.why || told(found));
  if (!found.why) draw(found);
  showMemory(found.memory || []);
}

function told({boxes, edges, edges_left_out, world_size}) {
  const stages = new Set(boxes.map(box => box.stage)).size, actors = boxes.reduce((n, box) => n + box.count, 0);
  const left = edges_left_out ? ", and " + edges_left_out + " more that are not drawn" : "";
  return actors + " actors in " + stages + (stages > 1 ? " stages" : " stage") + " on " + world_size +
    " ranks; " + edges.length + " edges" + left + ". Bytes are of the whole tensors, in one slot.";
}

const title = box => box.kind + (box.count > 1 ? " x " + box.count : "." + box.id);

function draw({boxes, edges}) {
  const stages = [...new Set(boxes.map(box => box.stage))].sort((a, b) => a - b);
  const rows = [...new Set(boxes.map(box => box.level))].sort((a, b) => a - b);
  const places = new Map(), columns = new Map(); // box -> its corner; stage -> its first column
  let width = 0;
  for (const stage of stages) {
    const own = boxes.filter(box => box.stage === stage), used = new Map();
    columns.set(stage, width);
    for (const box of own) {
      const column = used.get(box.level) || 0;
      used.set(box.level, column + 1);
      places.set(box.id, {x: 8 + (width + column) * (BOX.width + BOX.gapX), y: 22 + rows.indexOf(box.level) * (BOX.height + BOX.gapY)});
    }
    width += Math.max(...used.values());
  }
  const whole = [8 + width * (BOX.width + BOX.gapX), 22 + rows.length * (BOX.height + BOX.gapY)];
  const picture = svg("svg", {width: whole[0], height: whole[1], viewBox: "0 0 " + whole.join(" "), role: "img",
    "aria-label": boxes.length + " boxes and " + edges.length + " edges; the table below has them as words"});
  if (stages.length > 1) for (const stage of stages) {
    picture.append(svg("text", {x: 8 + columns.get(stage) * (BOX.width + BOX.gapX), y: 12}, "stage " + stage));
  }
  const labels = edges.map(edge => drawEdge(picture, edge, places, edges.length <= LABELLED));
  picture.append(...boxes.map(box => drawBox(box, places.get(box.id))), ...labels.flat());
  $("drawing").replaceChildren(picture);
  const names = new Map(boxes.map(box => [box.id, title(box)]));
  table($("edges"), edges, edge => edge.from + ">" + edge.to, edge => [
    names.get(edge.from), names.get(edge.to), edge.sbp, [size(edge.nbytes), "n"], [edge.slots, "n"],
    edge.type || (edge.values ? edge.values + " tensors" : "order only"),
  ]);
}

function drawBox(box, {x, y}) {
  const fit = text => text.length > 25 ? text.slice(0, 24) + "\u2026" : text;
  const lines = [title(box) + " @" + box.where, box.module || box.phase, box.ops];
  const texts = lines.map((line, i) => svg("text", {x: x + 6, y: y + 14 + 13 * i}, fit(line)));
  const full = lines.join("\n") + "\n" + box.nodes + " nodes, acts " + box.acts + " x a step";
  return svg("g", {class: box.kind.split("_")[0]}, svg("title", {}, full),
    svg("rect", {x, y, width: BOX.width, height: BOX.height, rx: 5}), ...texts);
}

// From the foot of one box to the head of another, or around those between them; thicker for more
// bytes. Returns its label, in the middle of it.
function drawEdge(picture, edge, places, isLabelled) {
  const corners = path(places.get(edge.from), places.get(edge.to));
  const [start, ...rest] = corners.map(corner => corner.join());
  const thick = Math.min(6, 1 + Math.log10(1 + edge.nbytes / 1024));
  const room = size(edge.nbytes) + (edge.slots > 1 ? ", " + edge.slots + " slots" : "");
  const words = edge.values ? edge.sbp + ", " + room : "order only", kind = edge.values ? "" : "order";
  picture.append(svg("path", {class: kind, d: "M" + start + "C" + rest.join(" "), "stroke-width": thick.toFixed(1)},
    svg("title", {}, words + (edge.type ? ", " + edge.type : ""))));
  if (!isLabelled) return [];
  const [x, y] = [0, 1].map(i => (corners[0][i] + 3 * corners[1][i] + 3 * corners[2][i] + corners[3][i]) / 8);
  return [svg("text", {class: "label", x, y: y + 3, "text-anchor": "middle"}, words)];
}

// The four corners of a Bezier curve.
function path(a, b) {
  const {width, height, gapY} = BOX, rows = (b.y - a.y) / (height + gapY), foot = a.y + height;
  if (a.x === b.x && rows > 1) {
    const right = a.x + width, bend = right + 24 + 14 * rows;
    return [[right, a.y + height / 2], [bend, foot], [bend, b.y], [right, b.y + height / 2]];
  }
  const [x1, x2] = [a.x + width / 2, b.x + width / 2], bend = Math.max(18, Math.abs(b.y - foot) / 2);
  return [[x1, foot], [x1, foot + bend], [x2, b.y - bend], [x2, b.y]];
}
