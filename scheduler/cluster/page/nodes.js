// The nodes: a chip for each device, in the colour of its state.

import {$, duration} from "./format.js";
import {element, keep, setText} from "./rows.js";

export function showNodes(daemons, choose) {
  const nodes = new Map();
  for (const daemon of daemons) nodes.set(daemon.node, [...(nodes.get(daemon.node) || []), daemon]);
  const shown = nodes.size ? [...nodes] : [["", []]];
  keep($("nodes"), shown, ([node]) => node, makeNode, (part, [node, own]) => {
    setText(part.firstChild, node || "No daemon has joined yet: oneflow daemon run");
    keep(part.lastChild, own, daemon => daemon.id, () => makeChip(choose), fillChip);
  });
}

const makeNode = () =>
  element("div", {className: "node"}, element("b"), element("span", {className: "node"}));

function makeChip(choose) {
  const chip = element("button", {type: "button"});
  chip.addEventListener("click", () => chip.dataset.job && choose(chip.dataset.job));
  return chip;
}

function fillChip(chip, daemon) {
  const {device, state, job, version} = daemon, isUp = state === "up";
  chip.dataset.job = job;
  chip.className = "chip " + (isUp && job ? "RUNNING" : state);
  const silence = ["suspect", "lost"].includes(state) ? ", silent for " + duration(daemon.silent_s) : "";
  setText(chip, device + " " + (isUp ? job || "free" : state + silence + (job ? ", " + job : "")));
  chip.title = daemon.id + ", version " + version;
}
