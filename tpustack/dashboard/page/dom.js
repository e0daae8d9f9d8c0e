// Builds the page. Text is only ever set as text: nothing that was read becomes markup.

export const $ = (id) => document.getElementById(id);

/** Makes an element. `about` has attributes; `on…` are listeners. Children are nodes or text. */
export function h(tag, about = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(about)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null && value !== false) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined).map(asNode));
  return made;
}

const asNode = (child) => (child instanceof Node ? child : String(child));

/** A cell that says its column's name where the table is shown as cards. */
export const cell = (label, content, kind = "") =>
  h("td", { "data-label": content === "" || !label ? null : label, class: kind }, content);

export const state = (word, kind) => h("span", { class: `state ${kind}` }, word);

/**
 * Makes the children of `parent` those of `items`, in their order; what has not changed stays.
 * `id` names an item, `make` makes its element.
 */
export function sync(parent, items, id, make) {
  const there = new Map([...parent.children].map((child) => [child.dataset.id, child]));
  let next = parent.firstElementChild;
  for (const item of items) {
    const key = id(item), text = JSON.stringify(item);
    let element = there.get(key);
    there.delete(key);
    if (!element || element.shown !== text) {
      const made = make(item);
      made.dataset.id = key;
      made.shown = text;
      if (element) {
        if (next === element) next = made;
        made.classList.add("changed");
        keepFocus(element, made);
      }
      element = made;
    }
    if (element === next) next = next.nextElementSibling;
    else parent.insertBefore(element, next);
  }
  for (const element of there.values()) element.remove();
}

// A row that is replaced while it has the focus keeps the key's place.
function keepFocus(before, after) {
  const focused = before.contains(document.activeElement) ? document.activeElement : null;
  const place = focused ? [...before.querySelectorAll("button, a")].indexOf(focused) : -1;
  before.replaceWith(after);
  if (place >= 0) after.querySelectorAll("button, a")[place]?.focus();
}

/** Shows at most `most` items, and a button for as many more. */
export class Pages {
  constructor(button, show, most = 100) {
    Object.assign(this, { button, most, size: most });
    button.addEventListener("click", () => { this.most += this.size; show(); });
  }
  cut(items) {
    const left = items.length - this.most;
    this.button.hidden = left <= 0;
    this.button.textContent = `Show ${Math.min(left, this.size)} more of ${left}`;
    return items.slice(0, this.most);
  }
}

/** Shows what could not be read, each problem once. */
export function problems(parent, found) {
  const places = new Map();
  for (const [place, problem] of found) if (problem) places.set(problem, [...(places.get(problem) ?? []), place]);
  const shown = [...places].slice(0, 5).map(([text, names]) => `${names.slice(0, 3).join(", ")}${names.length > 3 ? " …" : ""}: ${text}`);
  if (places.size > 5) shown.push(`and ${places.size - 5} more that can't be read`);
  sync(parent, shown, (text) => text, (text) => h("p", {}, text));
}
