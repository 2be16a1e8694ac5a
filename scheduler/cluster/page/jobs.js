// The list of jobs: a grid whose rows are chosen by mouse or keyboard.

import {$, duration, isEnded, label, runTime, setBar, short, steps, why} from "./format.js";
import {element, keep, setAttribute, setText} from "./rows.js";

// head, what it is sorted by, and what sets the name before the value where there is no head
const COLUMNS = [
  ["Job", job => label(job)],
  ["State", job => job.state],
  ["Steps", job => job.total_steps ? job.step / job.total_steps : job.step],
  ["Left", job => job.eta_s],
  ["Run time", (job, now) => runTime(job, now) || 0],
  ["Age", (job, now) => now - job.submitted_at],
  ["Devices", job => parseInt(job.devices, 10)],
  ["Owner", job => job.owner],
];
const HEADED = ["Left", "Run time", "Age"]; // on a card
const TEXTS = ["Job", "State", "Owner"];
let choose = () => {}, chosen = "", active = ""; // active: the row that Tab leads to
let sort = {by: "", down: false}, last = null;

export const filter = () => ({q: $("filter").value.trim(), state: $("states").value});

export function setUpJobs(onChoose, onFilter) {
  choose = onChoose;
  $("filter").addEventListener("input", onFilter);
  $("states").addEventListener("change", onFilter);
  for (const [head] of COLUMNS) {
    const button = element("button", {type: "button", textContent: head});
    button.addEventListener("click", () => sortBy(head));
    const th = element("th", {scope: "col"}, button);
    th.setAttribute("role", "columnheader");
    $("heads").append(th);
  }
  const body = $("jobs");
  body.addEventListener("click", event => {
    const row = event.target.closest("tr");
    if (row && document.getSelection().isCollapsed) pick(row);
  });
  body.addEventListener("keydown", onKey);
  body.addEventListener("focusin", event => setActive(event.target.closest("tr").dataset.job));
}

// Upwards, downwards, then as the scheduler gives them: the newest first of those that go on.
function sortBy(head) {
  if (sort.by !== head) sort = {by: head, down: false};
  else sort = sort.down ? {by: "", down: false} : {by: head, down: true};
  for (const th of $("heads").cells) {
    const way = sort.down ? "descending" : "ascending";
    setAttribute(th, "aria-sort", th.textContent === sort.by ? way : null);
  }
  if (last) showJobs(last, chosen);
}

function sorted(jobs, now) {
  const column = COLUMNS.find(([head]) => head === sort.by);
  if (!column) return jobs;
  const value = job => column[1](job, now), sign = sort.down ? -1 : 1;
  const compare = (a, b) => typeof a === "string" ? a.localeCompare(b, undefined, {numeric: true}) : a - b;
  return [...jobs].sort((a, b) => sign * compare(value(a), value(b)));
}

function onKey(event) {
  const row = event.target.closest("tr");
  const to = {ArrowDown: row.nextElementSibling, ArrowUp: row.previousElementSibling,
    Home: row.parentNode.firstElementChild, End: row.parentNode.lastElementChild}[event.key];
  if (event.key === "Enter" || event.key === " ") pick(row);
  else if (to) to.focus();
  else return;
  event.preventDefault();
}

function pick(row) {
  setActive(row.dataset.job);
  choose(row.dataset.job);
}

function setActive(id) {
  active = id;
  for (const row of $("jobs").rows) row.tabIndex = row.dataset.job === active ? 0 : -1;
}

export function showJobs(found, chosenId) {
  chosen = chosenId;
  last = found;
  const jobs = sorted(found.jobs, found.now), {q, state} = filter();
  keep($("jobs"), jobs, job => job.id, makeRow, (row, job) => fillRow(row, job, found.now));
  const ids = new Set(jobs.map(job => job.id));
  setActive(ids.has(active) ? active : ids.has(chosen) ? chosen : jobs.length ? jobs[0].id : "");
  $("none").hidden = jobs.length > 0 || q + state !== "";
  $("unmatched").hidden = jobs.length > 0 || q + state === "";
  setText($("shown"), found.total > jobs.length ? jobs.length + " of " + found.total : "");
  $("jobs-table").hidden = !jobs.length;
  setText($("summary"), Object.entries(found.counts).map(([state, n]) => n + " " + state).join(", "));
}

function makeRow(id) {
  const row = element("tr", {tabIndex: -1});
  row.setAttribute("role", "row");
  row.dataset.job = id;
  for (const [head] of COLUMNS) {
    const cell = row.insertCell();
    cell.setAttribute("role", "gridcell");
    if (HEADED.includes(head)) cell.dataset.head = head.toLowerCase();
    if (!TEXTS.includes(head)) cell.className = "n";
  }
  row.cells[0].className = "job";
  row.cells[0].append(element("b"), element("small"), element("small", {className: "why"}));
  const bar = element("progress");
  bar.setAttribute("aria-label", "steps done");
  row.cells[2].append(element("span"), bar);
  return row;
}

function fillRow(row, job, now) {
  setAttribute(row, "aria-selected", job.id === chosen);
  const [name, id, cause] = row.cells[0].children;
  setText(name, label(job));
  setText(id, [job.name && job.id, job.kind, job.attempt > 1 && "attempt " + job.attempt].filter(Boolean).join(", "));
  setText(cause, why(job));
  cause.title = why(job);
  setText(row.cells[1], job.state);
  row.cells[1].className = job.state;
  const [told, bar] = row.cells[2].children;
  setText(told, steps(job));
  setBar(bar, job);
  row.cells[2].classList.toggle("none", !steps(job));
  setText(row.cells[3], job.eta_s ? duration(job.eta_s) : "");
  setText(row.cells[4], duration(runTime(job, now)));
  setText(row.cells[5], duration(now - job.submitted_at));
  setText(row.cells[6], job.devices);
  setText(row.cells[7], job.owner);
}

// job: the chosen one, or null.
export function setTitle(counts, job) {
  const told = Object.entries(counts).filter(([state]) => !["SUCCEEDED", "CANCELLED"].includes(state));
  let title = told.map(([state, n]) => n + " " + state.toLowerCase()).join(", ");
  if (job) {
    const done = job.total_steps && !isEnded(job) ? " " + Math.floor(100 * job.step / job.total_steps) + " %" : "";
    title = job.state + done + " " + label(job);
  }
  title += (title && " - ") + "oneflow cluster";
  if (document.title !== title) document.title = title;
}

// On a small screen the chosen job is below the list: a tap must lead there.
export function reveal(node) {
  if (short.matches) node.scrollIntoView({block: "start"});
}
