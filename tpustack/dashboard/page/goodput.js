// Goodput and cost of each training, by day.

import { $, cell, h, problems, sync } from "./dom.js";
import { dollars, percent, span } from "./format.js";
import { openJob } from "./job.js";
import { isTold } from "./stacks.js";

export function showGoodput(messages, all) {
  const trainings = [...messages.values()].flatMap((message) => message.data.map((each) => ({ place: message.place, ...each })));
  trainings.sort((a, b) => b.end - a.end);
  $("goodput-count").textContent = total(trainings);
  $("goodput-empty").hidden = trainings.length > 0;
  problems($("goodput-problems"), [...messages.values()].filter((message) => !isTold(message.place, all)).map((message) => [message.place, message.problem]));
  if (trainings.length && !$("goodput-legend").children.length) $("goodput-legend").append(...trainings[0].parts.map(([name, colour]) => h("span", {}, swatch(colour), name)));
  sync($("goodput-rows"), trainings.slice(0, 50), (each) => `${each.place}/${each.folder}`, training);
}

function total(trainings) {
  if (!trainings.length) return "";
  const wall = trainings.reduce((sum, each) => sum + each.wall, 0);
  const good = trainings.reduce((sum, each) => sum + each.wall * each.goodput, 0);
  return `${percent(wall ? good / wall : 0)} of ${span(wall)}`;
}

function swatch(colour) {
  const made = h("i", { class: "swatch" });
  made.style.background = colour;
  return made;
}

function training(each) {
  const name = each.folder.replace(/^jobs\//, "").replace(/\/model$/, "");
  const cost = each.cost ? `, ${dollars(each.cost, each.complete)}` : "";
  const worst = Object.entries(each.causes)[0];
  const said = `${percent(each.goodput)} of ${span(each.wall)}${cost} · ${each.steps.toLocaleString()} steps in ${each.starts} ${each.starts === 1 ? "start" : "starts"}, ${each.lostSteps.toLocaleString()} done again`;
  return h("article", { class: "training" },
    h("h3", {}, h("button", { type: "button", class: "open", onclick: () => openJob(each.place, name, [each.folder]) }, name), " ", h("small", { class: "sub" }, each.place)),
    h("p", {}, said, worst ? ` · longest loss: ${worst[0]} (${span(worst[1])})` : "", each.problems.length ? ` · ${each.problems.join("; ")}` : ""),
    h("table", { class: "days" },
      h("thead", {}, h("tr", {}, ...["day (UTC)", "where the time went", "goodput", "time", "cost"].map((word, place) => h("th", { scope: "col", class: place > 1 ? "number" : "" }, word)))),
      h("tbody", {}, ...each.days.slice(0, 31).map(day))));
}

const day = (each) => h("tr", {},
  cell("", each.day),
  cell("", bar(each)),
  cell("goodput", percent(each.goodput), "number"),
  cell("time", span(each.wall), "number"),
  cell("cost", dollars(each.cost, each.complete), "number"));

function bar(each) {
  const parts = each.parts.filter(([, , seconds]) => seconds);
  const said = parts.map(([name, , seconds]) => `${name} ${percent(seconds / each.wall)}`).join(", ");
  const made = h("div", { class: "bar", role: "img", "aria-label": said, title: said });
  for (const [, colour, seconds] of parts) {
    const part = h("i");
    part.style.background = colour;
    part.style.flexGrow = seconds;
    made.append(part);
  }
  return made;
}
