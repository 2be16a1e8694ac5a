// The chosen job.

import {$, clock, duration, label, number, percent, runTime, steps, why} from "./format.js";
import {setText, table, terms} from "./rows.js";

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
  $("bar").hidden = !job.total_steps;
  $("bar").max = job.total_steps || 1;
  $("bar").value = Math.min(job.step, job.total_steps);
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
    ["checkpoint", job.checkpoint ? "step " + job.checkpoint_step + ": " + job.checkpoint : ""],
  ];
}
