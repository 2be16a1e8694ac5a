// The chosen job.

import {$, clock, duration, label, number, percent, runTime, setBar, steps, why} from "./format.js";
import {ask, jobPath} from "./api.js";
import {element, keep, setText, table, terms} from "./rows.js";

let failure = "", files = ""; // of which job, attempt and state they are shown

export function showJob(job, now) {
  setText($("title"), label(job));
  setText($("state"), job.state);
  $("state").className = job.state;
  setText($("why"), why(job) || job.warning);
  showProgress(job);
  terms($("facts"), facts(job, now));
  table($("ranks"), job.ranks, rank => rank.rank, rank => [
    [rank.rank, "n"], rank.node, rank.device,
    [rank.failed ? "failed first" : rank.phase, rank.failed ? "FAILED" : ""],
    Object.entries(rank.idle).map(([name, share]) => percent(share) + " " + name).join(", "),
    [rank.waiting, "soft"],
  ]);
  const numbers = Object.entries(job.metrics).sort();
  $("lasts").hidden = !numbers.length;
  table($("numbers"), numbers, ([name]) => name, ([name, value]) => [name, [number(value, 6), "n"]]);
}

function showProgress(job) {
  $("progress").hidden = !job.step && !job.total_steps;
  setBar($("bar"), job);
  const pace = job.steps_per_s ? number(job.steps_per_s, 3) + " steps/s" : "";
  const left = job.eta_s ? duration(job.eta_s) + " left" : "";
  setText($("steps"), [steps(job), pace, left].filter(Boolean).join(", "));
}

function facts(job, now) {
  const isOver = Boolean(job.finished_at);
  const restarts = job.restarts_spent || job.max_restarts ? job.restarts_spent + " of " + job.max_restarts : "";
  return [
    ["id", job.id], ["kind", job.kind], ["owner", job.owner], ["devices", job.devices],
    ["command", job.command.join(" ")],
    ["submitted", clock(job.submitted_at) + ", " + duration(now - job.submitted_at) + " ago"],
    ["run time", duration(runTime(job, now))],
    ["time limit", job.time_limit_s ? duration(job.time_limit_s) : ""],
    ["ended", isOver ? clock(job.finished_at) : ""],
    ["exit code", isOver ? job.exit_code + (job.reason === "NONE" ? "" : ", " + job.reason) : ""],
    ["attempt", job.attempt || ""], ["restarts spent", restarts],
    ["checkpoint", job.checkpoint ? "of step " + job.checkpoint_step : ""],
  ];
}

const moment = job => [job.id, job.attempt, job.state].join("/");

// The last words of the rank that failed first, before everything else.
export async function showFailure(job) {
  const hasFailed = job.failed_rank >= 0 && job.failed_rank < job.num_ranks;
  if (!hasFailed || failure !== moment(job)) $("failure").hidden = true;
  if (!hasFailed || failure === moment(job)) return;
  const found = await ask(jobPath(job.id, "/failure"));
  failure = found.error ? "" : moment(job);
  setText($("failed"), "Rank " + found.rank + " failed first: " + job.reason + ", exit code " + job.exit_code);
  setText($("words"), found.error || found.lines.join("\n") || "it wrote nothing to stderr");
  setText($("log-path"), found.log && job.host + ":" + found.log);
  $("failure").hidden = false;
}

// Asked for when they are looked at, and again when the job's state has changed.
export async function showFiles(job) {
  if (!$("files").open || files === moment(job)) return;
  files = moment(job);
  const found = await ask(jobPath(job.id, "/outputs")).catch(error => ({names: [], error: error.message}));
  const {names, error} = found, has = names.length > 0;
  terms($("file-facts"), [
    ["last checkpoint", job.checkpoint ? "step " + job.checkpoint_step + ": " + job.checkpoint : "none"],
    ["restarts spent", job.restarts_spent + " of " + job.max_restarts],
    ["outputs", error || (has ? names.length : "none")],
    ["fetch them", has ? "oneflow job outputs " + job.id + " --to FOLDER" : ""],
  ]);
  keep($("names"), names, name => name, () => element("li"), setText);
}
