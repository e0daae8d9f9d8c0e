// The table of TPUs.

import { $, Pages, cell, h, problems, state, sync } from "./dom.js";
import { now, span } from "./format.js";
import { watch } from "./news.js";
import { isTold, isZoneTold } from "./stacks.js";

const GOOD = ["READY", "IN USE"], BUSY = ["CREATING", "STARTING", "RESTARTING", "REIMAGING", "REPAIRING"];
const BAD = ["PREEMPTED", "TERMINATED", "DELETING", "NO MACHINE", "UNHEALTHY_MAINTENANCE"];
const kind = (word) => (GOOD.includes(word) ? "good" : BUSY.includes(word) ? "busy" : BAD.includes(word) ? "bad" : "");
const HEALTHY = ["", "HEALTHY", "HEALTH_UNSPECIFIED"];
const RANK = ["bad", "busy", "good", ""];
let last = null;
const pages = new Pages($("tpus-more"), () => showTpus(...last), 60);

export function showTpus(messages, all) {
  last = [messages, all];
  const tpus = [...messages.values()].flatMap((message) => message.data.map((tpu) => ({ place: message.place, ...tpu }))).filter((tpu) => tpu.state !== "ABSENT" || !isTold(tpu.place, all));
  for (const tpu of tpus) watch("TPU", tpu.name, tpu.state);
  const good = tpus.filter((tpu) => kind(tpu.state) === "good");
  $("tpus-count").textContent = tpus.length ? `${good.length} of ${tpus.length} ready` : "";
  $("tpus-empty").hidden = tpus.length > 0;
  $("tpus-rows").closest("table").hidden = tpus.length === 0;
  problems($("tpus-problems"), [...messages.values()].filter((message) => !isZoneTold(message.place, all)).map((message) => [message.place, message.problem]));
  tpus.sort((a, b) => RANK.indexOf(kind(a.state)) - RANK.indexOf(kind(b.state)) || a.name.localeCompare(b.name));
  const shown = pages.cut(tpus).map((tpu) => ({ ...tpu, age: age(tpu) }));
  sync($("tpus-rows"), shown, (tpu) => `${tpu.place}/${tpu.name}`, row);
}

const age = (tpu) => (tpu.created ? span(now() - Date.parse(tpu.created) / 1000) : "");

// The command that helps, where a person has to run one.
const next = (tpu) => (tpu.state === "PREEMPTED" ? h("div", { class: "sub" }, "run ", h("code", {}, `tpustack recover --stack ${tpu.place}`)) : null);

const row = (tpu) => h("tr", {},
  cell("", h("div", {}, h("b", {}, tpu.name), tpu.place === tpu.name ? null : h("div", { class: "sub" }, tpu.place))),
  cell("state", h("div", {}, state(tpu.state, kind(tpu.state)), next(tpu))),
  cell("type", tpu.type ?? ""),
  cell("where", tpu.zone ?? ""),
  cell("age", tpu.age, "number"),
  cell("health", HEALTHY.includes(tpu.health ?? "") ? (tpu.health === "HEALTHY" ? "healthy" : "") : `${tpu.health}: ${tpu.said}`));
