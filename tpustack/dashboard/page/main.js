// Starts the page: follows the stream, and hands each message to the part that shows it.

import { Lost, Refused, lines } from "./api.js";
import { $ } from "./dom.js";
import { clock } from "./format.js";
import { showGoodput } from "./goodput.js";
import { closeJob, connected } from "./job.js";
import { showJobs } from "./jobs.js";
import { showStacks } from "./stacks.js";
import { showTpus } from "./tpus.js";

const SHOW = { stacks: showStacks, tpus: showTpus, jobs: showJobs, trainings: showGoodput };
const AGAIN = 2000;
const messages = { stacks: new Map(), tpus: new Map(), jobs: new Map(), trainings: new Map() };
const dirty = new Set();

function hear(message) {
  const place = messages[message.topic];
  if (!place) return;
  place.set(message.place, message);
  // A burst of messages is drawn once.
  if (!dirty.size) requestAnimationFrame(draw);
  dirty.add(message.topic);
}

function draw() {
  // A stack's state comes from its jobs and TPUs. The other parts leave out problems that it explains.
  for (const topic in SHOW) if (messages[topic].size && (dirty.has("jobs") || dirty.has("stacks") || topic === "stacks")) dirty.add(topic);
  for (const topic of dirty) SHOW[topic](messages[topic], messages);
  dirty.clear();
}

async function follow() {
  for (;;) {
    try {
      await lines("feed", (message) => { say(`live, ${clock(Date.now() / 1000)}`, true); hear(message); });
      say(new Lost().message, false);
    } catch (error) {
      if (error instanceof Refused) return refuse(error.message);
      say(new Lost().message, false);
    }
    await new Promise((done) => setTimeout(done, AGAIN));
  }
}

function say(text, isLive) {
  $("link").textContent = text;
  $("link").classList.toggle("bad", !isLive);
  connected(isLive, text);
}

function refuse(why) {
  say("not connected", false);
  $("alert").textContent = why;
  $("alert").hidden = false;
}

addEventListener("keydown", (event) => {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key === "/" && !typing && !$("job").open) {
    event.preventDefault();
    $("jobs-find").focus();
  }
});
$("job-close").addEventListener("click", closeJob);
// Ages grow without any message.
setInterval(() => { for (const topic of ["jobs", "tpus"]) if (messages[topic].size) SHOW[topic](messages[topic], messages); }, 15000);

follow();
