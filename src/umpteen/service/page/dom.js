// Elements are made here and nowhere else. Text goes in as text: nothing on this page parses HTML from data.

export const at = (id) => document.getElementById(id);

/** An element with attributes, listeners ({onclick: f}) and children (elements, strings, or null for none). */
export function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same for a part of an SVG picture. */
export function shape(tag, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

/** Text into an element, only if it is another: what is read aloud is not read twice. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Shown with this text, or hidden when it is empty. */
export function sayOrHide(element, text) {
  say(element, text);
  element.hidden = text === "";
}
