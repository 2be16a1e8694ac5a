// The nodes: a chip for each device, in the colour of its state, and what is used of the machine.

import {$, duration, number, size} from "./format.js";
import {element, keep, setText} from "./rows.js";

export function showNodes({daemons, uses}, choose) {
  const nodes = new Map();
  for (const daemon of daemons) nodes.set(daemon.node, [...(nodes.get(daemon.node) || []), daemon]);
  const shown = nodes.size ? [...nodes] : [["", []]];
  keep($("nodes"), shown, ([node]) => node, makeNode, (part, [node, own]) => {
    setText(part.firstChild, node || "No daemon has joined yet: oneflow daemon run");
    keep(part.children[1], own, daemon => daemon.id, () => makeChip(choose), fillChip);
    keep(part.lastChild, told(uses[node] || {}), ([name]) => name, makeUse, fillUse);
  });
}

const makeNode = () =>
  element("div", {className: "node"}, element("b"), element("span", {className: "node"}),
    element("span", {className: "node"}));

// What is known: [name, share that is used or null, words].
function told(use) {
  const {memory_nbytes: memory, disk_nbytes: disk, disk_free_nbytes: free} = use;
  const used = memory - use.memory_free_nbytes;
  return [
    ["load", use.processors && use.load / use.processors, number(use.load, 2) + " / " + use.processors],
    ["memory", memory && used / memory, size(used) + " / " + size(memory)],
    ["disk", disk && 1 - free / disk, size(free) + " free"],
    ["network", null, "in " + size(use.received_nbytes_per_s) + "/s, out " + size(use.sent_nbytes_per_s) + "/s"],
  ].filter(([, share]) => use.processors && share !== 0);
}

function makeUse(name) {
  const bar = element("progress", {max: 1, hidden: name === "network"});
  bar.setAttribute("aria-label", name);
  return element("span", {className: "use"}, name + " ", bar, element("span"));
}

function fillUse(part, [, share, words]) {
  if (share !== null) part.children[0].value = Math.min(share, 1);
  setText(part.lastChild, words);
}

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
