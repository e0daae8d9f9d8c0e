// Lists what has just changed.

import { $, h } from "./dom.js";
import { clock, now } from "./format.js";

const MOST = 6;
const before = new Map();

/** Tells once that the state of something has changed; the first state is no news. */
export function watch(kind, name, word) {
  const key = `${kind} ${name}`, last = before.get(key);
  before.set(key, word);
  if (last === undefined || last === word) return;
  const item = h("li", {}, h("time", {}, clock(now())), `${kind} ${name}: ${last} → ${word}`);
  $("news").hidden = false;
  $("news-list").prepend(item);
  while ($("news-list").children.length > MOST) $("news-list").lastElementChild.remove();
}
