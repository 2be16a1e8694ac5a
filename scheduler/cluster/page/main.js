// What is shown when: one refresh after the other while somebody looks.

import {setUpActions, showActions} from "./actions.js";
import {ask, hasToken, jobPath, setToken} from "./api.js";
import {$} from "./format.js";
import {followCurve, setUpCurves} from "./curves.js";
import {showFailure, showFiles, showJob} from "./job.js";
import {filter, reveal, setTitle, setUpJobs, showJobs} from "./jobs.js";
import {followLogs, setUpLogs} from "./logs.js";
import {setUpMemory} from "./memory.js";
import {showNodes} from "./nodes.js";
import {showPlan} from "./plan.js";
import {setText} from "./rows.js";
import {setUpTimeline, showTimeline} from "./timeline.js";

const POLL_MS = 2000;
let chosen = decodeURIComponent(location.hash.slice(1)), timer = 0, round = 0;

function choose(id) {
  chosen = id;
  history.replaceState(null, "", "#" + encodeURIComponent(id));
  refresh().then(() => reveal($("detail")));
}

// One that was overtaken by a later one shows nothing.
async function refresh() {
  clearTimeout(timer);
  if (document.hidden || !hasToken()) return;
  const own = ++round;
  try {
    const [jobs, cluster] = await Promise.all([ask("jobs", filter()), ask("cluster")]);
    if (own === round) await show(jobs, cluster, own);
  } catch (error) {
    if (own === round) fail(error);
  }
  if (own === round) timer = setTimeout(refresh, POLL_MS);
}

async function show(jobs, cluster, own) {
  $("login").hidden = true;
  $("content").hidden = $("leave").hidden = false;
  setText($("who"), cluster.me.name + " (" + cluster.me.role + ")");
  setText($("trouble"), cluster.trouble);
  showJobs(jobs, chosen);
  showNodes(cluster, choose);
  const job = chosen && await ask(jobPath(chosen)).catch(error => {
    if (error.status !== 404) throw error;
  });
  if (own !== round) return;
  setTitle(jobs.counts, job);
  $("detail").hidden = !job;
  if (!job) return;
  showJob(job, jobs.now);
  showActions(job);
  await Promise.all([showFailure, followLogs, followCurve, showFiles, showPlan, showTimeline].map(part => part(job, jobs.jobs)));
}

function fail(error) {
  if (error.status === undefined) throw error; // a fault of this page
  setText($("trouble"), error.message);
  if (error.status === 401 || error.status === 403) leave();
}

function leave() {
  setToken("");
  $("login").hidden = false;
  $("content").hidden = $("leave").hidden = true;
  setText($("who"), "");
  setText($("summary"), "");
  document.title = "oneflow cluster";
}

let typing = 0;
setUpJobs(choose, () => {
  clearTimeout(typing);
  typing = setTimeout(refresh, 200);
});
setUpLogs(refresh);
setUpCurves();
setUpMemory();
setUpActions(refresh);
setUpTimeline(refresh);
for (const id of ["files", "plan", "timeline-details"]) $(id).addEventListener("toggle", refresh);
$("login").addEventListener("submit", event => {
  event.preventDefault();
  setToken($("token").value.trim());
  $("token").value = "";
  setText($("trouble"), "");
  refresh();
});
$("leave").addEventListener("click", () => {
  round++;
  leave();
});
document.addEventListener("visibilitychange", refresh);
addEventListener("hashchange", () => {
  const wanted = decodeURIComponent(location.hash.slice(1));
  if (!document.getElementById(wanted)) choose(wanted);
});
refresh();
