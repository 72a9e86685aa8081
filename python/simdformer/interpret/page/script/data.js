// One page, no network: everything that is drawn lies in the elements #data and #arrays. These files follow each
// other in one module, in the order of SCRIPTS in look.py. Text of a model is data: it goes into textContent alone.

const data = JSON.parse(document.getElementById("data").textContent);
const L = data.tokens.length;
const LAYERS = data.layers;
const HEADS = data.heads;

const byId = (id) => document.getElementById(id);
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

// ---- the numbers, as content.py packs them

function bytesOf(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64); // since 2025
  return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
}

if (!("DecompressionStream" in window))
  document.body.textContent = "This page needs a browser of 2023 or later.";
const squeezed = new Blob([bytesOf(byId("arrays").textContent)]).stream();
const numbers = await new Response(squeezed.pipeThrough(new DecompressionStream("deflate"))).arrayBuffer();

const KINDS = { uint8: Uint8Array, int32: Int32Array, float32: Float32Array };
const arrayOf = ([kind, place, count]) => new KINDS[kind](numbers, place, count);

const patterns = arrayOf(data.patterns); // (layers, heads, lower triangle): 255 is a share of 1
const TRIANGLE = (L * (L + 1)) / 2;
const rowAt = (layer, head, query) => (layer * HEADS + head) * TRIANGLE + (query * (query + 1)) / 2;
/** The share of its attention that a query gives to a key. */
const share = (layer, head, query, key) =>
  key > query ? 0 : patterns[rowAt(layer, head, query) + key] / 255;

const NEXT = 5;
const nextWords = arrayOf(data.next.words); // (L, NEXT)
const nextShares = arrayOf(data.next.shares);
const actual = arrayOf(data.next.actual); // (L): the probability of the token there; NaN for the first
const word = (index) => data.words[index];

/** A token as a label: blanks can be seen, and it is not too long. */
function label(text, longest = 14) {
  const seen = text.replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/ /g, "␣") || "∅";
  const letters = Array.from(seen);
  return letters.length > longest ? `${letters.slice(0, longest - 1).join("")}…` : seen;
}

const code = (text, longest) => make("code", { dir: "auto" }, label(text, longest));

/** Words of a list with their probabilities, as bars; word 0 is none, where a vocabulary has fewer. */
function listing(indices, shares, places) {
  const lines = places
    .filter((i) => indices[i] > 0)
    .map((i) => {
      const part = `${(100 * shares[i]).toFixed(1)}%`;
      return make("li", { "--part": part }, code(word(indices[i]), 20), make("span", {}, percent(shares[i])));
    });
  return make("ol", {}, ...lines);
}
