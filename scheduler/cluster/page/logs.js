// The logs of the chosen job's ranks, as they are written.

import {ask, jobPath} from "./api.js";
import {$, isEnded} from "./format.js";
import {element, keep, setText} from "./rows.js";

const MAX_LINES = 5000, MAX_BEHIND = 1 << 20, MANY_RANKS = 32;
const ESCAPES = /\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])/g;
let view = {key: ""};

export function setUpLogs(onChange) {
  for (const id of ["log-rank", "log-stream", "log-attempt"]) $(id).addEventListener("change", onChange);
  const wrap = () => $("log").classList.toggle("wrap", $("log-wrap").checked);
  $("log-wrap").addEventListener("change", wrap);
  wrap();
  $("log-follow").addEventListener("change", () => $("log-follow").checked && toEnd());
  $("log").addEventListener("scroll", () => {
    $("log-follow").checked = $("log").scrollHeight - $("log").scrollTop - $("log").clientHeight < 24;
  });
}

export async function followLogs(job) {
  fillChoices(job);
  const attempt = $("log-attempt").value || String(job.attempt);
  const query = {attempt, ranks: $("log-rank").value, stream: $("log-stream").value};
  const key = [job.id, job.submitted_at, ...Object.values(query)].join("/");
  if (view.key !== key) {
    view = {key, streams: new Map(), isOver: false};
    $("log").replaceChildren();
    setText($("log-note"), "");
    $("log-follow").checked = true;
  }
  if (view.isOver) return;
  const own = view;
  const reached = [...view.streams].filter(([, s]) => s.next !== null);
  const from = reached.map(([name, s]) => attempt + "/" + name + ":" + s.next).join();
  const found = await ask(jobPath(job.id, "/logs"), {...query, from});
  if (own !== view) return;
  take(found.streams, !query.ranks && job.num_ranks > 1);
  const isLive = !isEnded(job) && Number(attempt) === job.attempt;
  view.isOver = !isLive && found.streams.every(part => part.is_closed);
  showNote(job, found);
}

function fillChoices(job) {
  const ranks = job.ranks.map(rank => [rank.rank, "rank " + rank.rank + (rank.failed ? ", failed first" : "")]);
  const first = job.num_ranks > MANY_RANKS ? "first " + MANY_RANKS + " ranks" : "all ranks";
  choices($("log-rank"), job.id, [["", first], ...ranks]);
  const numbers = Array.from({length: job.attempt}, (_, i) => job.attempt - i);
  choices($("log-attempt"), job.id, [["", "last attempt"], ...numbers.slice(1, 100).map(n => [n, "attempt " + n])]);
}

// One of another job begins with its first choice.
function choices(select, owner, options) {
  keep(select, options, ([value]) => value, value => element("option", {value}),
    (option, [, text]) => setText(option, text));
  if (select.dataset.owner !== owner) select.value = "";
  select.dataset.owner = owner;
}

function take(parts, hasRanks) {
  const holds = document.getSelection(), log = $("log");
  const isHeld = !holds.isCollapsed && log.contains(holds.anchorNode);
  for (const part of parts) {
    const name = part.rank + "/" + part.stream;
    const stream = view.streams.get(name) || {next: null, open: null};
    view.streams.set(name, stream);
    if (part.error) continue;
    const begin = part.next - new TextEncoder().encode(part.text).length;
    if (stream.next === null && begin > 0) note(stream, name, begin + " bytes before this are not shown here");
    if (part.dropped) note(stream, name, part.dropped + " bytes were dropped");
    addText(stream, part, hasRanks);
    stream.next = part.next;
    if (part.size - part.next > MAX_BEHIND) stream.next = null; // too fast to be read: go on with its end
  }
  while (!isHeld && log.childElementCount > MAX_LINES) log.firstChild.remove();
  if ($("log-follow").checked && !isHeld) toEnd();
}

function note(stream, name, text) {
  stream.open = null;
  $("log").append(element("div", {className: "note", textContent: "[" + name + ": " + text + "]"}));
}

function addText(stream, part, hasRanks) {
  const lines = part.text.replace(ESCAPES, "").split("\n");
  for (const [i, text] of lines.entries()) {
    const isLast = i === lines.length - 1;
    if (isLast && !text) return;
    if (!stream.open) {
      stream.open = element("div", {className: part.stream});
      if (hasRanks) stream.open.dataset.rank = part.rank;
      $("log").append(stream.open);
    }
    stream.open.textContent = overwritten(stream.open.textContent + text);
    if (!isLast) stream.open = null;
  }
}

// What a terminal shows of a line that was begun anew, as progress bars do.
function overwritten(text) {
  const whole = text.endsWith("\r") ? text.slice(0, -1) : text;
  const begun = whole.slice(whole.lastIndexOf("\r") + 1);
  return text.endsWith("\r") ? begun + "\r" : begun;
}

function toEnd() {
  $("log").scrollTop = $("log").scrollHeight;
}

function showNote(job, found) {
  const errors = [...new Set(found.streams.map(part => part.error).filter(Boolean))];
  if (!job.attempt) errors.push("It has not started yet.");
  else if (!$("log").childElementCount && !errors.length) errors.push(isEnded(job) ? "Nothing was written." : "Nothing has been written yet.");
  if (found.ranks_left_out) errors.push(found.ranks_left_out + " ranks are not shown: choose one.");
  setText($("log-note"), errors.join(" "));
}
