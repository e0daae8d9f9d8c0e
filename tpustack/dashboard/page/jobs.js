// The table of jobs.

import { $, Pages, cell, h, problems, sync } from "./dom.js";
import { now, span } from "./format.js";
import { badge, word } from "./job-state.js";
import { openJob, seen } from "./job.js";
import { watch } from "./news.js";
import { isTold } from "./stacks.js";

const LAST = 1e9;
const rank = (job) => ["running", "queued"].indexOf(job.state) & 3;
let last = null;
const show = () => last && showJobs(...last);
const pages = new Pages($("jobs-more"), show);
$("jobs-find").addEventListener("input", show);
$("jobs-state").addEventListener("input", show);

export function showJobs(messages, all) {
  last = [messages, all];
  const several = messages.size > 1;
  const jobs = [...messages.values()].flatMap((message) => message.data.map((job) => ({ where: message.place, ...job })));
  for (const job of jobs) {
    // An attempt that is over shows in the number of the next one, too.
    watch("job", job.name, job.state === "queued" && job.reason ? `${word(job)} (${job.reason})` : word(job));
    seen(job);
  }
  problems($("jobs-problems"), [...messages.values()].filter((message) => !isTold(message.place, all)).map((message) => [message.place, message.problem]));
  if (several) jobs.sort((a, b) => rank(a) - rank(b) || (a.place ?? LAST) - (b.place ?? LAST) || (b.submitted ?? 0) - (a.submitted ?? 0));
  const text = $("jobs-find").value.toLowerCase(), wanted = $("jobs-state").value;
  const chosen = jobs.filter((job) => (!wanted || job.state === wanted) && (!text || `${job.name} ${job.command} ${job.where}`.toLowerCase().includes(text)));
  $("jobs-count").textContent = count(jobs, chosen);
  const running = jobs.filter((job) => job.state === "running").length;
  document.title = running ? `(${running} running) tpu-stack` : "tpu-stack";
  $("jobs-empty").hidden = chosen.length > 0;
  $("jobs-rows").closest("table").hidden = chosen.length === 0;
  const shown = pages.cut(chosen).map((job) => ({ ...job, several, age: span(now() - (job.submitted ?? now())), took: took(job) }));
  sync($("jobs-rows"), shown, (job) => `${job.where}/${job.name}`, row);
}

function count(jobs, chosen) {
  if (!jobs.length) return "";
  const of = (...words) => jobs.filter((job) => words.includes(job.state)).length;
  const all = `${of("running")} running, ${of("queued")} queued, ${jobs.length} in all`;
  return chosen.length === jobs.length ? all : `${chosen.length} of ${all}`;
}

const took = (job) => (job.started ? span((job.ended ?? now()) - job.started) : "");

const row = (job) => h("tr", {},
  cell("", h("div", {},
    h("button", { type: "button", class: "open", onclick: () => openJob(job.where, job.name) }, job.name),
    job.several ? h("div", { class: "sub" }, job.where) : null)),
  cell("state", h("div", {}, badge(job), job.reason ? h("div", { class: "sub" }, job.reason) : null)),
  cell("next", job.place ?? "", "number"),
  cell("attempts", job.tries || "", "number"),
  cell("age", job.age, "number"),
  cell("took", job.took, "number"),
  cell("command", h("code", {}, job.command ?? "")));
