// A job's state, in a word and a colour.

import { state } from "./dom.js";

const KINDS = { running: "busy", queued: "wait", "waiting to restart": "wait", succeeded: "good", failed: "bad", "timed-out": "bad", stopping: "wait" };

export const word = (job) =>
  job.state === "running" && job.stop ? "stopping" : job.state === "queued" && job.reason ? "waiting to restart" : job.state;
export const badge = (job) => state(job.code ? `${word(job)} (${job.code})` : word(job), KINDS[word(job)] ?? "");
