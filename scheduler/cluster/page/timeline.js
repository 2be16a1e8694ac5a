// The last steps of a graph job, from a trace: a row for each actor of each rank, acts and waits.

import {ask, change, jobPath} from "./api.js";
import {$, isEnded, number} from "./format.js";
import {svg, ticks} from "./plot.js";
import {setText} from "./rows.js";

const LEFT = 150, RIGHT = 8, HEAD = 20, ROW = 16;
const STATES = {asked: "The trace begins when the ranks meet next.", recording: "The steps are being recorded.",
  writing: "The trace is being written.", none: "No steps have been traced yet."};
let shown = null, found = null, bars = [], cursor = null; // found: the answer that is drawn

export function setUpTimeline(onDone) {
  $("trace").addEventListener("click", async () => {
    setText($("timeline-refusal"), "");
    await change(jobPath(shown.id, "/trace?steps=" + $("trace-steps").value))
      .catch(error => setText($("timeline-refusal"), error.message));
    onDone();
  });
  const node = $("timeline");
  new ResizeObserver(draw).observe(node);
  node.addEventListener("pointermove", event => read(bars.findIndex(bar => bar.part === event.target)));
  node.addEventListener("keydown", onKey);
}

export async function showTimeline(job) {
  $("timeline-part").hidden = job.kind === "script";
  if (shown?.id !== job.id) setText($("timeline-refusal"), "");
  if (shown?.id !== job.id) show(null);
  shown = job;
  $("trace-tools").hidden = !job.may_change || isEnded(job);
  if (job.kind === "script" || !$("timeline-details").open || (isEnded(job) && found)) return;
  const answer = await ask(jobPath(job.id, "/timeline")).catch(error => ({error: error.message}));
  if (shown !== job) return;
  if (answer.state !== "done") show(null);
  else if (answer.trace !== found?.trace) show(answer);
  setText($("timeline-note"), found ? told(found) : answer.error || STATES[answer.state] || answer.state);
}

function show(answer) {
  found = answer;
  bars = [];
  cursor = null;
  $("timeline").replaceChildren();
  $("timeline").setAttribute("height", 0);
  setText($("timeline-reading"), "");
  draw();
}

const span = us => us >= 1e6 ? number(us / 1e6, 3) + " s" : us >= 1000 ? number(us / 1000, 3) + " ms" : number(us, 3) + " us";

function told({acts, waits, length, left_out}) {
  const steps = acts.map(act => act[3]), low = Math.min(...steps), high = Math.max(...steps);
  const waited = waits.reduce((whole, wait) => whole + wait[2], 0);
  return (low === high ? "Step " + low : "Steps " + low + " to " + high) + " in " + span(length) + ": " + acts.length +
    " acts; waits of all ranks together " + span(waited) + (left_out ? "; " + left_out + " more bars are not drawn" : "") + ".";
}

// Acts are filled; a wait has a frame, in the colour of its kind.
function draw() {
  const width = $("timeline").clientWidth;
  if (!found || !width) return;
  const {rows, acts, waits, length} = found, height = HEAD + ROW * rows.length + 2;
  const atX = us => LEFT + (width - LEFT - RIGHT) * us / (length || 1);
  const grid = ticks(0, length || 1, Math.max(2, width / 160)).flatMap(us => [
    svg("line", {x1: atX(us), x2: atX(us), y1: HEAD - 3, y2: height}),
    svg("text", {x: atX(us), y: 12, "text-anchor": atX(us) > width - 40 ? "end" : "start"}, span(us))]);
  const fit = text => text.length > 19 ? text.slice(0, 18) + "\u2026" : text;
  const names = rows.map(({rank, actor}, i) =>
    svg("text", {x: 0, y: HEAD + ROW * i + 12}, svg("title", {}, actor), rank + " " + fit(actor)));
  bars = [...waits, ...acts].sort((a, b) => a[1] - b[1]).map(([row, begin, took, step, piece, cause]) => {
    const kind = !cause ? "act" : cause[0] < 0 ? "wait slot" : "wait input", inset = cause ? 4 : 2, x = atX(begin);
    const place = {x, y: HEAD + ROW * row + inset, width: Math.max(atX(begin + took) - x, 1), height: ROW - 2 * inset};
    return {part: svg("rect", {...place, class: kind}), row, begin, took, step, piece, cause};
  });
  $("timeline").setAttribute("height", height);
  $("timeline").setAttribute("viewBox", "0 0 " + width + " " + height);
  $("timeline").replaceChildren(...grid, ...names, ...bars.map(bar => bar.part));
  if (cursor !== null) read(cursor);
}

function read(at) {
  if (!bars[at]) return;
  bars[cursor]?.part.classList.remove("read");
  cursor = at;
  const {part, row, begin, took, step, piece, cause} = bars[at], {rank, actor} = found.rows[row];
  part.classList.add("read");
  const what = cause ? " waits for " + (cause[0] < 0 ? cause[1] : cause[1] + " of rank " + cause[0]) : " acts";
  setText($("timeline-reading"), "Rank " + rank + ", " + actor + what + ": " + span(took) + " from " + span(begin) +
    ", step " + step + ", micro-batch " + piece);
}

// Left and right: the bar before or after in its row; up and down: the nearest one of another row.
function onKey(event) {
  const way = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -1, ArrowDown: 1}[event.key];
  if (!way || !bars.length) return;
  event.preventDefault();
  const now = bars[cursor];
  if (!now) return read(0);
  const isAcross = event.key === "ArrowUp" || event.key === "ArrowDown";
  const own = bars.filter(bar => bar.row === now.row + (isAcross ? way : 0));
  const apart = bar => Math.abs(bar.begin - now.begin);
  const next = isAcross ? own.sort((a, b) => apart(a) - apart(b))[0] : own[own.indexOf(now) + way];
  read(bars.indexOf(next));
}
