// What all of the page is made with. Text of a model is data: it goes into textContent alone.

const percent = (share) =>
  share >= 0.0995 ? `${Math.round(100 * share)} %` : `${(100 * share).toFixed(1)} %`;
const clamp = (value, most) => Math.max(0, Math.min(most, value));
const range = (count, from = 0) => Array.from({ length: count }, (_, i) => from + i);

/** An element with attributes and children; strings become text. */
function make(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** The same for a part of an SVG picture. */
function draw(name, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("--")) element.style.setProperty(key, value);
    else element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

/** A token as a label: blanks can be seen, and it is not too long. */
function label(text, longest = 14) {
  const seen = text.replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/ /g, "␣") || "∅";
  const letters = Array.from(seen);
  return letters.length > longest ? `${letters.slice(0, longest - 1).join("")}…` : seen;
}

const code = (text, longest) => make("code", { dir: "auto" }, label(text, longest));
