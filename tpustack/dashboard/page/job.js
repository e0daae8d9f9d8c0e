// One job: what it is, its log, its curves, and its buttons.

import { Lost, blob, get, path, post } from "./api.js";
import { drawCurves } from "./curves.js";
import { $, h } from "./dom.js";
import { bytes, moment, span } from "./format.js";
import { badge } from "./job-state.js";
import { Log } from "./log.js";

const SURE = 5000, CURVES = 15000;
const log = new Log($("log"), $("log-state"), $("log-follow"));
const known = new Set();
let open = null;

/** Opens a job of a queue, or a training that is in none: of that there are the curves alone. */
export function openJob(place, name, folders = [`jobs/${name}`, `jobs/${name}/model`]) {
  const whole = known.has(`${place}/${name}`);
  open = { place, name, folders, whole, where: `places/${path(place)}/jobs/${path(name)}`, state: "" };
  $("job-title").textContent = name;
  $("job-said").textContent = "";
  $("job-facts").replaceChildren();
  $("job-charts").replaceChildren();
  $("job-state").replaceChildren();
  $("job-about").hidden = !whole;
  document.querySelector(".log").hidden = !whole;
  for (const id of ["job-stop", "job-resubmit"]) $(id).hidden = true;
  $("job").showModal();
  if (whole) {
    log.follow(`${open.where}/log`);
    refresh();
    $("log").focus();
  }
  if ($("job-curves").open) showCurves();
  $("job-curves").open ||= !whole;
}

/** Shows in the dialog whether the server answers: without it no button can do anything. */
export function connected(isLive, text) {
  if (isLive && !$("job-link").hidden && open?.whole) refresh();
  $("job-link").hidden = isLive;
  $("job-link").textContent = isLive ? "" : text;
  $("job-buttons").disabled = $("log-save").disabled = !isLive;
}

// The dialog's line about the connection tells of a lost one.
function told(error) {
  if (!(error instanceof Lost)) $("job-said").textContent = error.message;
}

export function closeJob() { $("job").close(); }
$("job").addEventListener("close", () => { log.stop(); open = null; });

/** Hears of each job that the stream tells of: the open one may have changed. */
export function seen(job) {
  known.add(`${job.where}/${job.name}`);
  if (!open || job.name !== open.name || job.where !== open.place) return;
  const now = JSON.stringify(job);
  if (now !== open.state) { open.state = now; refresh(); }
}

async function refresh() {
  const asked = open;
  try {
    const job = await get(asked.where);
    if (asked === open) show(job);
  } catch (error) {
    if (asked === open) told(error);
  }
}

function show(job) {
  const over = job.ended !== null;
  $("job-state").replaceChildren(badge(job));
  $("job-stop").hidden = over;
  $("job-stop").disabled = job.stop;
  $("job-resubmit").hidden = false;
  $("job-said").textContent = [job.reason, job.state === "queued" ? job.waiting : ""].filter(Boolean).join(" · ");
  $("job-facts").replaceChildren(...facts(job).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

const facts = (job) => [
  ["command", h("code", {}, job.spec.command)],
  ["framework", job.spec.framework],
  ["submitted", `${moment(job.submitted)} by ${job.by || "unknown"}`],
  ["source", job.spec.source],
  ["variables", job.spec.env.join(", ")],
  ["after", job.spec.after.join(", ")],
  ["budgets", `${job.spec.failures} failures, ${job.spec.preemptions} preemptions`],
  ["folder", `${job.bucket}/jobs/${job.name}`],
  ...job.tries.map((each) => [`attempt ${each.number}`, tryOf(each)]),
  ...job.artifacts.slice(0, 50).map((file) => [bytes(file.bytes), file.url]),
].filter(([, value]) => value);

const tryOf = (each) => `${moment(each.started)} on ${each.machine}, ` +
  (each.ended ? `${each.why} after ${span(each.ended - each.started)}` : "runs") +
  (each.code === null ? "" : `, exit code ${each.code}`);

async function act(verb, word) {
  const asked = open;
  try {
    const done = await post(`${asked.where}/${verb}`);
    $("job-said").textContent = word(done);
  } catch (error) {
    told(error);
  }
  if (asked === open) refresh();
}

// Stop wants a second press: it can't be undone.
let unsure = null;
$("job-stop").addEventListener("click", () => {
  if (unsure) { calm(); act("stop", (done) => `${done.name} is ${done.state}`); return; }
  $("job-stop").textContent = "Stop for good?";
  $("job-stop").classList.add("sure");
  unsure = setTimeout(calm, SURE);
});
$("job-stop").addEventListener("blur", calm);
function calm() {
  clearTimeout(unsure);
  unsure = null;
  $("job-stop").textContent = "Stop";
  $("job-stop").classList.remove("sure");
}
$("job-resubmit").addEventListener("click", () => act("resubmit", (done) => `queued as ${done.name}`));

$("log-save").addEventListener("click", async () => {
  try {
    const link = h("a", { href: URL.createObjectURL(await blob(`${open.where}/log.txt`)), download: `${open.name}.log` });
    link.click();
    URL.revokeObjectURL(link.href);
  } catch (error) {
    told(error);
  }
});

$("job-curves").addEventListener("toggle", () => { if ($("job-curves").open && open) showCurves(); });
async function showCurves() {
  const asked = open;
  const answers = await Promise.all(asked.folders.map((folder) => curvesOf(asked.place, folder)));
  if (asked !== open || !$("job-curves").open) return;
  // What was drawn stays while the server is gone.
  if (answers.some(Boolean)) drawCurves($("job-charts"), Object.assign({}, ...answers));
  setTimeout(() => { if (asked === open && $("job-curves").open) showCurves(); }, CURVES);
}
async function curvesOf(place, folder) {
  try {
    return await get(`places/${path(place)}/curves?training=${encodeURIComponent(folder)}`);
  } catch (error) {
    told(error);
    return null;
  }
}
