// Makes elements. Text is always text: there is no way here to hand HTML to the browser (and the page's policy forbids it).

const SVG = "http://www.w3.org/2000/svg";

/**
 * An HTML element. `attributes`: `class`, `dataset` (an object), `on` (an object of listeners), properties whose value is
 * not a string (`disabled: true`, `value: 3`), and any other attribute by its name; null, undefined and false leave it out.
 * `children`: nodes, strings, numbers, or arrays of them; null and false are skipped.
 */
export function h(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** The same for SVG. */
export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "dataset") Object.assign(element.dataset, value);
    else if (name === "on") for (const [event, call] of Object.entries(value)) element.addEventListener(event, call);
    else if (name.startsWith("on") || name === "style") throw new Error(`${name} is not allowed by the page's policy`);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children) {
    if (Array.isArray(child)) append(element, child);
    else if (child instanceof Node) element.append(child);
    else if (child !== null && child !== undefined && child !== false) element.append(String(child));
  }
}

/** A control under its label. */
export const labelled = (label, control, kind = "field") => h("div", { class: kind }, h("label", { for: control.id }, label), control);

/** Radio buttons. `choices`: values with their texts; `choose(value)` is called with another one. */
export const radios = (name, choices, chosen, choose) =>
  choices.map(([value, text]) => h("label", {}, h("input", { type: "radio", name, value, checked: value === chosen, on: { change: () => choose(value) } }), text));

/** Replace what is in an element. */
export function replace(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

/** Set an element's text, and touch the document only when it differs (so that a screen reader reads it once). */
export function setText(element, text) {
  const value = String(text ?? "");
  if (element.textContent !== value) element.textContent = value;
}

/** The element with this id. */
export const byId = id => document.getElementById(id);

/** Call `work` at most once per frame, however often the returned function is called. A hidden page gets its turn too. */
export function eachFrame(work) {
  let asked = false;
  const run = () => {
    if (!asked) return;
    asked = false;
    work();
  };
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(run);
    setTimeout(run, 250); // a hidden page has no frames
  };
}

/** Call `work` after `ms`, or as soon as the page is seen again if it is hidden by then. What is returned calls it off. */
export function later(work, ms) {
  const seen = () => {
    if (document.hidden) return;
    document.removeEventListener("visibilitychange", seen);
    work();
  };
  const timer = setTimeout(() => {
    if (document.hidden) document.addEventListener("visibilitychange", seen);
    else work();
  }, ms);
  return () => {
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", seen);
  };
}

/** What the browser keeps under this name, in `localStorage` or (`sessionStorage`) for this tab; null where storage is switched off. */
export function recall(name, storage = "localStorage") {
  try {
    return window[storage].getItem(name);
  } catch {
    return null;
  }
}

/** Keep a text under this name, "" for none. Where storage is switched off, it holds until the page is left. */
export function remember(name, text, storage = "localStorage") {
  try {
    if (text) window[storage].setItem(name, text);
    else window[storage].removeItem(name);
  } catch {
    // storage is switched off
  }
}
