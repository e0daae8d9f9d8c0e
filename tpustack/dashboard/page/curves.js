// Learning curves, each drawn as a small picture.

import { h, sync } from "./dom.js";
import { number } from "./format.js";

const WIDE = 340, HIGH = 150, LEFT = 46, RIGHT = 8, TOP = 8, BOTTOM = 18;
const SVG = "http://www.w3.org/2000/svg";

function svg(tag, about, text = "") {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(about)) made.setAttribute(name, value);
  made.textContent = text;
  return made;
}

export function drawCurves(parent, curves) {
  const named = Object.entries(curves).filter(([, points]) => points.length);
  if (!named.length) { parent.replaceChildren(h("p", { class: "empty" }, "No curves yet: a training writes them for TensorBoard.")); return; }
  parent.querySelector(".empty")?.remove();
  sync(parent, named, ([tag]) => tag, ([tag, points]) => chart(tag, points));
}

function chart(tag, points) {
  const steps = points.map(([step]) => step), values = points.map(([, value]) => value);
  const x = scale(steps, LEFT, WIDE - RIGHT), y = scale(values, HIGH - BOTTOM, TOP);
  const said = `from ${number(values[0])} at step ${steps[0]} to ${number(values.at(-1))} at step ${steps.at(-1)}`;
  const picture = svg("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", "aria-label": `${tag}: ${said}` });
  for (const value of new Set([y.low, y.high])) {
    picture.append(svg("line", { x1: LEFT, x2: WIDE - RIGHT, y1: y.at(value), y2: y.at(value) }));
    picture.append(svg("text", { x: LEFT - 5, y: y.at(value) + 3, "text-anchor": "end" }, number(value)));
  }
  for (const [value, anchor] of [[x.low, "start"], [x.high, "end"]]) {
    picture.append(svg("text", { x: x.at(value), y: HIGH - 4, "text-anchor": anchor }, value.toLocaleString()));
  }
  picture.append(svg("polyline", { points: points.map(([step, value]) => `${x.at(step)},${y.at(value)}`).join(" ") }));
  const last = h("output", {}, number(values.at(-1)));
  picture.addEventListener("pointermove", (event) => {
    const place = (event.offsetX / picture.clientWidth) * WIDE;
    const [step, value] = points.reduce((best, point) => (Math.abs(x.at(point[0]) - place) < Math.abs(x.at(best[0]) - place) ? point : best));
    last.textContent = `${number(value)} at step ${step.toLocaleString()}`;
  });
  picture.addEventListener("pointerleave", () => { last.textContent = number(values.at(-1)); });
  return h("figure", {}, h("figcaption", {}, tag, last), picture);
}

function scale(values, from, to) {
  const low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b));
  return { low, high, at: (value) => Math.round(10 * (high === low ? (from + to) / 2 : from + ((value - low) / (high - low)) * (to - from))) / 10 };
}
