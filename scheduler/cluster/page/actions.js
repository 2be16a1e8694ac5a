// Buttons that change the chosen job, each after a question.

import {change, jobPath} from "./api.js";
import {$, isEnded, label} from "./format.js";
import {setText} from "./rows.js";

const VERBS = {
  cancel: {
    name: "Cancel the job",
    ask: job => "Cancel " + label(job) + "? Its ranks are stopped, now or once they have saved a checkpoint.",
  },
  restart: {
    name: "Restart the job",
    ask: job => "Restart " + label(job) + "? It begins again " +
      (job.checkpoint ? "from its checkpoint of step " + job.checkpoint_step : "from its beginning") + ".",
  },
};
let shown = null, asked = null; // the job that is shown; the verb and job that are asked about

export function setUpActions(onDone) {
  for (const verb of Object.keys(VERBS)) $(verb).addEventListener("click", () => question(verb, shown));
  $("no").addEventListener("click", () => $("confirm").close());
  $("yes").addEventListener("click", async () => {
    const {verb, id} = asked;
    $("confirm").close();
    setText($("refusal"), "");
    await change(jobPath(id, "/" + verb)).catch(error => setText($("refusal"), error.message));
    onDone();
  });
}

export function showActions(job) {
  if (shown?.id !== job.id) setText($("refusal"), "");
  shown = job;
  $("cancel").hidden = !job.may_change || isEnded(job) || job.state === "CANCELLING";
  $("restart").hidden = !job.may_change || !isEnded(job);
}

function question(verb, job) {
  asked = {verb, id: job.id};
  setText($("question"), VERBS[verb].ask(job));
  setText($("yes"), VERBS[verb].name);
  $("confirm").showModal();
}
