// A log that stays readable at any speed: drawn a few times a second, with at most so many lines,
// and not while the reader has scrolled up.

import { Lost, lines } from "./api.js";

export const MOST_LINES = 2000, LONGEST = 2000;
const DRAW = 250, AGAIN = 2000, NEAR = 24;
const ESCAPES = /\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])/g;
const CONTROLS = /[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

export class Log {
  constructor(box, status, more) {
    Object.assign(this, { box, status, more });
    box.addEventListener("scroll", () => this.scrolled());
    more.addEventListener("click", () => this.goOn());
    this.reset();
  }

  reset() {
    this.box.replaceChildren();
    this.waiting = [];
    this.dropped = 0;
    this.rest = "";
    this.restLength = 0;
    this.count = 0;
    this.total = 0;
    this.paused = false;
    this.at = "";
    this.ended = null;
    this.timer = null;
    this.more.hidden = true;
    this.status.textContent = "";
  }

  async follow(where) {
    this.stop();
    this.reset();
    const mine = (this.reading = new AbortController());
    while (!mine.signal.aborted && !this.ended) {
      try {
        await lines(`${where}?behind=${encodeURIComponent(this.at)}`, (message) => this.hear(message), mine.signal);
      } catch (error) {
        if (!mine.signal.aborted) this.status.textContent = error instanceof Lost ? "waiting for the connection" : error.message;
      }
      if (!this.ended) await new Promise((done) => setTimeout(done, AGAIN));
    }
  }

  stop() { this.reading?.abort(); clearTimeout(this.timer); this.timer = null; }

  hear(message) {
    if (message.problem) this.status.textContent = message.problem;
    if (message.skipped) { this.end(); this.add(`${message.skipped.toLocaleString()} bytes are left out here. "Save whole log" includes them`, true); }
    if (message.try) { this.end(); this.add(`attempt ${message.try}`, true); }
    if (message.text !== undefined) { this.at = message.at; this.text(message.text); }
    if (message.state) { this.ended = message; this.end(); }
    this.timer ??= setTimeout(() => { this.timer = null; this.draw(); }, DRAW);
  }

  text(text) {
    const parts = text.split("\n");
    this.keep(parts[0]);
    for (const part of parts.slice(1)) { this.end(true); this.keep(part); }
  }

  // Of a line that has no end, no more is kept than is shown.
  keep(part) {
    if (this.rest.length <= LONGEST) this.rest += part.slice(0, 4 * LONGEST);
    this.restLength += part.length;
  }

  end(evenIfEmpty = false) {
    if (this.restLength || evenIfEmpty) this.add(tidy(this.rest, this.restLength));
    this.rest = "";
    this.restLength = 0;
  }

  add(line, mark = false) {
    this.total += mark ? 0 : 1;
    this.waiting.push({ line, mark });
    if (this.waiting.length > 2 * MOST_LINES) {
      this.dropped += this.waiting.length - MOST_LINES;
      this.waiting = this.waiting.slice(-MOST_LINES);
    }
  }

  draw() {
    if (this.paused) { this.say(); return; }
    const fresh = this.waiting.slice(-MOST_LINES);
    this.waiting = [];
    this.dropped = 0;
    for (const run of runs(fresh)) this.append(run);
    while (this.count > MOST_LINES && this.box.childElementCount > 1) {
      this.count -= this.box.firstElementChild.lines;
      this.box.firstElementChild.remove();
    }
    this.box.scrollTop = this.box.scrollHeight;
    this.say();
  }

  append({ mark, texts }) {
    const made = document.createElement("pre");
    made.textContent = texts.join("\n");
    made.lines = texts.length;
    if (mark) made.className = "mark";
    this.count += texts.length;
    this.box.append(made);
  }

  scrolled() {
    const near = this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight < NEAR;
    if (near === !this.paused) return;
    this.paused = !near;
    if (this.paused) this.say(); else this.draw();
  }

  goOn() { this.paused = false; this.draw(); this.box.focus(); }

  say() {
    const code = this.ended?.code;
    const state = this.ended ? `ended: ${this.ended.state}${code ? ` (${code})` : ""}` : this.paused ? "paused where you read" : "live";
    this.status.textContent = `${state} · ${this.total.toLocaleString()} lines`;
    this.more.hidden = !this.paused;
    const more = this.waiting.length + this.dropped;
    this.more.textContent = more ? `Follow, ${more.toLocaleString()} new` : "Go to the end";
  }
}

/** A line as it can be read: what a terminal would show, no colours, no controls, not too long. */
export function tidy(line, length = line.length) {
  const shown = line.replace(/\r$/, "");
  const last = shown.slice(shown.lastIndexOf("\r") + 1).replace(ESCAPES, "").replace(CONTROLS, "�");
  return last.length > LONGEST || length > 4 * LONGEST ? `${last.slice(0, LONGEST)} … (${length.toLocaleString()} characters)` : last;
}

/** Blocks of at most 250 lines of one kind: few elements, and the first ones can go soon. */
function runs(entries) {
  const found = [];
  for (const { line, mark } of entries) {
    const now = found.at(-1);
    if (now && now.mark === mark && now.texts.length < 250) now.texts.push(line);
    else found.push({ mark, texts: [line] });
  }
  return found;
}
