// The table of stacks.

import { $, Pages, cell, h, problems, sync } from "./dom.js";
import { dollars } from "./format.js";

let last = null;
const pages = new Pages($("stacks-more"), () => showStacks(...last), 60);

export function showStacks(messages, all) {
  last = [messages, all];
  const stacks = [...messages.values()].flatMap((message) => message.data).filter((each) => each.isStack);
  const known = stacks.filter((each) => each.hour);
  const sum = known.reduce((total, each) => total + Number(each.hour), 0);
  $("stacks-count").textContent = known.length ? `${stacks.length}, ${dollars(sum)} an hour if all are up` : "";
  $("stacks-empty").hidden = stacks.length > 0;
  $("stacks-rows").closest("table").hidden = stacks.length === 0;
  problems($("stacks-problems"), stacks.map((each) => [each.name, each.problem]));
  sync($("stacks-rows"), pages.cut(stacks), (stack) => stack.name, row);
}

const row = (stack) => h("tr", {},
  cell("", h("b", {}, stack.name)),
  cell("TPU", stack.tpu ?? ""),
  cell("zone", stack.zone ?? ""),
  cell("capacity", stack.capacity ?? ""),
  cell("an hour", dollars(stack.hour, stack.complete), "number"));
