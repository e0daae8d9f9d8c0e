// Learning curves: loss first, one picture for each metric, the rest folded by group.

import { h, sync } from "./dom.js";
import { number } from "./format.js";

const WIDE = 340, HIGH = 150, LEFT = 46, RIGHT = 8, TOP = 8, BOTTOM = 18;
const SVG = "http://www.w3.org/2000/svg";
const SPLITS = ["train", "validation", "test"];
const FIRST = [/loss$/, /accuracy$/], LAST = ["learning_rate", "examples_per_second", "gradient_norm", "flops_per_second", "mfu"];

function svg(tag, about, text = "") {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(about)) made.setAttribute(name, value);
  made.textContent = text;
  return made;
}

function rank(metric) {
  const first = FIRST.findIndex((form) => form.test(metric)), last = LAST.indexOf(metric);
  return first >= 0 ? first : last >= 0 ? FIRST.length + 1 + last : FIRST.length;
}

/** Returns the charts that are shown at once, and those of each folded group, each with its lines by split. */
function arranged(curves) {
  const main = new Map(), folded = new Map();
  for (const tag of Object.keys(curves).sort()) {
    if (!curves[tag].length) continue;
    const [head, ...rest] = tag.split("/");
    const split = SPLITS.includes(head), group = !split && rest.length > 0;
    const charts = group ? folded.get(head) ?? folded.set(head, new Map()).get(head) : main;
    const metric = split || group ? rest.join("/") : tag;
    if (!charts.has(metric)) charts.set(metric, []);
    charts.get(metric).push([split ? head : "", curves[tag]]);
  }
  const listed = (charts) => [...charts].map(([metric, lines]) => [metric, lines.sort((a, b) => SPLITS.indexOf(a[0]) - SPLITS.indexOf(b[0]))]);
  return [
    listed(main).sort((a, b) => rank(a[0]) - rank(b[0]) || a[0].localeCompare(b[0])),
    [...folded].map(([group, charts]) => [group, listed(charts)]),
  ];
}

export function drawCurves(parent, curves) {
  const [main, folded] = arranged(curves);
  if (!main.length && !folded.length) { parent.replaceChildren(h("p", { class: "empty" }, "This training has written no curves yet.")); return; }
  parent.querySelector(".empty")?.remove();
  if (!parent.firstElementChild) parent.append(h("div", { class: "charts" }));
  sync(parent.firstElementChild, main, ([metric]) => metric, ([metric, lines]) => chart(metric, lines));
  for (const [group, charts] of folded) {
    let place = [...parent.children].find((child) => child.dataset.group === group);
    if (!place) {
      place = h("details", { "data-group": group }, h("summary", {}), h("div", { class: "charts" }));
      parent.append(place);
    }
    place.firstElementChild.textContent = `${group} (${charts.length})`;
    sync(place.lastElementChild, charts, ([metric]) => metric, ([metric, lines]) => chart(metric, lines));
  }
}

function chart(metric, lines) {
  const all = lines.flatMap(([, points]) => points);
  const x = scale(all.map(([step]) => step), LEFT, WIDE - RIGHT), y = scale(all.map(([, value]) => value), HIGH - BOTTOM, TOP);
  const said = lines.map(([split, points]) => `${split} ${number(points.at(-1)[1])} at step ${points.at(-1)[0]}`.trim()).join(", ");
  const picture = svg("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", "aria-label": `${metric}: ${said}` });
  for (const value of new Set([y.low, y.high])) {
    picture.append(svg("line", { x1: LEFT, x2: WIDE - RIGHT, y1: y.at(value), y2: y.at(value) }));
    picture.append(svg("text", { x: LEFT - 5, y: y.at(value) + 3, "text-anchor": "end" }, number(value)));
  }
  const ends = x.low === x.high ? [[x.low, "middle"]] : [[x.low, "start"], [x.high, "end"]];
  for (const [value, anchor] of ends) {
    picture.append(svg("text", { x: x.at(value), y: HIGH - 4, "text-anchor": anchor }, value.toLocaleString()));
  }
  const shown = lines.map(([split, points]) => {
    const kind = `k${Math.max(0, SPLITS.indexOf(split))}`;
    if (points.length === 1) picture.append(svg("circle", { class: kind, cx: x.at(points[0][0]), cy: y.at(points[0][1]), r: 3.5 }));
    else picture.append(svg("polyline", { class: kind, points: points.map(([step, value]) => `${x.at(step)},${y.at(value)}`).join(" ") }));
    const last = h("output", {}, number(points.at(-1)[1]));
    return { points, last, label: h("span", {}, split ? h("i", { class: `swatch ${kind}` }) : null, split, " ", last) };
  });
  picture.addEventListener("pointermove", (event) => {
    const place = (event.offsetX / picture.clientWidth) * WIDE;
    for (const { points, last } of shown) {
      const [step, value] = points.reduce((best, point) => (Math.abs(x.at(point[0]) - place) < Math.abs(x.at(best[0]) - place) ? point : best));
      last.textContent = `${number(value)} at step ${step.toLocaleString()}`;
    }
  });
  picture.addEventListener("pointerleave", () => { for (const { points, last } of shown) last.textContent = number(points.at(-1)[1]); });
  return h("figure", {}, h("figcaption", {}, metric, h("span", { class: "lines" }, ...shown.map((each) => each.label))), picture);
}

function scale(values, from, to) {
  const low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b));
  return { low, high, at: (value) => Math.round(10 * (high === low ? (from + to) / 2 : from + ((value - low) / (high - low)) * (to - from))) / 10 };
}
