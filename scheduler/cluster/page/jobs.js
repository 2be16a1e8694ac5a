// The list of jobs: a grid whose rows are chosen by mouse or keyboard.

import {$, duration, isEnded, label, runTime, short, steps, why} from "./format.js";
import {element, keep, setAttribute, setText} from "./rows.js";

const COLUMNS = [
  {head: "Job"}, {head: "State"}, {head: "Steps"}, {head: "Left"}, {head: "Run time"}, {head: "Age"},
  {head: "Devices"}, {head: "Owner"},
];
let choose = () => {}, chosen = "", active = ""; // active: the row that Tab leads to

export function setUpJobs(onChoose) {
  choose = onChoose;
  for (const {head} of COLUMNS) {
    $("heads").append(element("th", {scope: "col", textContent: head}));
  }
  for (const th of $("heads").cells) th.setAttribute("role", "columnheader");
  const body = $("jobs");
  body.addEventListener("click", event => {
    const row = event.target.closest("tr");
    if (row && document.getSelection().isCollapsed) pick(row);
  });
  body.addEventListener("keydown", onKey);
  body.addEventListener("focusin", event => setActive(event.target.closest("tr").dataset.job));
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
  const jobs = found.jobs;
  keep($("jobs"), jobs, job => job.id, makeRow, (row, job) => fillRow(row, job, found.now));
  const ids = new Set(jobs.map(job => job.id));
  setActive(ids.has(active) ? active : ids.has(chosen) ? chosen : jobs.length ? jobs[0].id : "");
  $("none").hidden = jobs.length > 0;
  $("jobs-table").hidden = !jobs.length;
  setText($("summary"), Object.entries(found.counts).map(([state, n]) => n + " " + state).join(", "));
}

function makeRow(id) {
  const row = element("tr", {tabIndex: -1});
  row.setAttribute("role", "row");
  row.dataset.job = id;
  for (const {head} of COLUMNS) {
    const cell = row.insertCell();
    cell.setAttribute("role", "gridcell");
    if (["Left", "Run time", "Age"].includes(head)) cell.dataset.head = head.toLowerCase();
    if (!["Job", "State", "Owner"].includes(head)) cell.className = "n";
  }
  row.cells[0].className = "job";
  row.cells[0].append(element("b"), element("small"), element("small", {className: "why"}));
  return row;
}

function fillRow(row, job, now) {
  setAttribute(row, "aria-selected", job.id === chosen);
  const [name, id, cause] = row.cells[0].children;
  setText(name, label(job));
  setText(id, job.name ? job.id : job.kind);
  setText(cause, why(job));
  cause.title = why(job);
  setText(row.cells[1], job.state + (job.attempt > 1 ? " (" + job.attempt + ")" : ""));
  row.cells[1].className = job.state;
  setText(row.cells[2], steps(job));
  setText(row.cells[3], job.eta_s ? duration(job.eta_s) : "");
  setText(row.cells[4], duration(runTime(job, now)));
  setText(row.cells[5], duration(now - job.submitted_at));
  setText(row.cells[6], job.devices);
  setText(row.cells[7], job.owner);
}

export function setTitle(found, chosenId) {
  const job = found.jobs.find(each => each.id === chosenId);
  const counts = Object.entries(found.counts).filter(([state]) => !["SUCCEEDED", "CANCELLED"].includes(state));
  let told = counts.map(([state, n]) => n + " " + state.toLowerCase()).join(", ");
  if (job) {
    const done = job.total_steps && !isEnded(job) ? " " + Math.floor(100 * job.step / job.total_steps) + " %" : "";
    told = job.state + done + " " + label(job);
  }
  const title = (told ? told + " - " : "") + "oneflow cluster";
  if (document.title !== title) document.title = title;
}

// On a small screen the chosen job is below the list: a tap must lead there.
export function reveal(node) {
  if (short.matches) node.scrollIntoView({block: "start"});
}
