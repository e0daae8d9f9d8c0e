// The table of stacks: what each is, what it costs now, and its drift.

import { path, post } from "./api.js";
import { $, Pages, cell, h, problems, state, sync } from "./dom.js";
import { dollars } from "./format.js";

const WORDS = { missing: ["not deployed", ""], denied: ["no access", "bad"], lost: ["no bucket", "bad"], unknown: ["unknown", "wait"] };
const KINDS = { "no change": "good", drift: "wait", failure: "bad" };
const found = new Map();
let last = null;
const pages = new Pages($("stacks-more"), () => showStacks(...last), 60);

const isStack = (name, all) => [...all.stacks.values()].some((message) => message.data.some((each) => each.isStack && each.name === name));

/** Whether the table of stacks already shows why nothing of a place can be read. */
export const isTold = (name, all) => isStack(name, all) && Boolean(all.jobs.get(name)?.kind);

/** Likewise for all stacks of a zone, `PROJECT/ZONE`. */
export function isZoneTold(zone, all) {
  const there = [...all.stacks.values()].flatMap((message) => message.data).filter((each) => `${each.project}/${each.zone}` === zone);
  return there.length > 0 && there.every((each) => isTold(each.name, all));
}

export function showStacks(messages, all) {
  last = [messages, all];
  const stacks = [...messages.values()].flatMap((message) => message.data).filter((each) => each.isStack);
  const known = stacks.filter((each) => each.hour);
  const sum = known.reduce((total, each) => total + Number(each.hour), 0);
  const ready = new Set([...all.tpus.values()].flatMap((message) => message.data).filter((tpu) => tpu.state === "READY").map((tpu) => tpu.place));
  const there = new Set([...all.tpus.values()].flatMap((message) => message.data).filter((tpu) => tpu.state !== "ABSENT").map((tpu) => tpu.place));
  const now = known.filter((each) => ready.has(each.name)).reduce((total, each) => total + Number(each.hour), 0);
  $("stacks-count").textContent = known.length ? `${stacks.length} · running now ${dollars(now)}/h · ${dollars(sum)}/h if all are up` : "";
  $("stacks-empty").hidden = stacks.length > 0;
  $("stacks-rows").closest("table").hidden = stacks.length === 0;
  problems($("stacks-problems"), stacks.map((each) => [each.name, each.problem]));
  const shown = pages.cut(stacks).map((stack) => ({ ...stack, drift: found.get(stack.name), about: about(all.jobs.get(stack.name), there.has(stack.name)) }));
  sync($("stacks-rows"), shown, (stack) => stack.name, row);
}

// A stack without a bucket is not deployed, unless it has a TPU: then the bucket was lost.
function about(message, hasTpu) {
  if (!message) return null;
  const kind = message.kind === "missing" && hasTpu ? "lost" : message.kind ?? (message.problem ? "unknown" : "");
  return { kind, problem: ["denied", "lost"].includes(kind) ? message.problem : "" };
}

function stateOf(stack) {
  if (stack.problem) return state("wrong file", "bad");
  if (!stack.about) return "";
  const [word, kind] = WORDS[stack.about.kind] ?? ["deployed", "good"];
  return h("div", {}, state(word, kind), stack.about.problem ? h("div", { class: "sub" }, stack.about.problem) : null);
}

const row = (stack) => h("tr", {},
  cell("", h("b", {}, stack.name)),
  cell("state", stateOf(stack)),
  cell("TPU", stack.tpu ?? ""),
  cell("zone", stack.zone ?? ""),
  cell("capacity", stack.capacity ?? ""),
  cell("an hour", dollars(stack.hour, stack.complete), "number"),
  cell("drift", driftOf(stack)));

function driftOf(stack) {
  if (stack.problem) return "";
  const about = stack.drift;
  const word = about === "busy" ? "comparing …" : about ? "Compare again" : "Compare";
  const button = h("button", { type: "button", disabled: about === "busy" ? "" : null, onclick: () => compare(stack.name), "aria-label": `Compare the state of ${stack.name} with the cloud` }, word);
  if (!about || about === "busy") return button;
  return h("div", {}, state(about.outcome, KINDS[about.outcome] ?? "wait"), " ", button, h("div", { class: "sub" }, said(about)));
}

const said = (about) => [
  about.problem,
  ...about.changes.map((change) => `${change.operation} ${change.name}${change.properties.length ? ` (${change.properties.join(", ")})` : ""}`),
  ...about.notes,
].filter(Boolean).join("; ").slice(0, 1500);

async function compare(name) {
  found.set(name, "busy");
  showStacks(...last);
  try {
    found.set(name, await post(`places/${path(name)}/drift`));
  } catch (error) {
    found.set(name, { outcome: "failure", problem: error.message, changes: [], notes: [] });
  }
  showStacks(...last);
}
