// What a page shows: `data`, and the arrays that it names, in the memory `now` and, at the same places, in `before`.
// These files follow each other in one function, in the order of VIEWS in look.py:
//   openPage(root, data, now, before,
//     { kept, theme, signal, pick, mayEdit, rewrite, append, lens, takeBack, chosen })
// root is the document or, in a notebook, a shadow root, and `kept` an earlier state. By the functions a notebook's
// kernel is told what is clicked on; when it has written into `now`, page.refresh() shows that.

const L = data.tokens.length;
const LAYERS = data.layers;
const HEADS = data.heads;
const byId = (id) => root.getElementById(id);

const KINDS = { uint8: Uint8Array, int32: Int32Array, float32: Float32Array };
const arrayOf = ([kind, place, count]) => new KINDS[kind](now, place, count);

const arraysBefore = new Map();
/** The same array of the reading before the changes. */
function asBefore(array) {
  const { byteOffset, length } = array;
  if (!arraysBefore.has(array)) arraysBefore.set(array, new array.constructor(before, byteOffset, length));
  return arraysBefore.get(array);
}
const isChanged = () => data.changes.length > 0;
/** " (before …)" where something is changed. */
const was = (array, at, said) => (isChanged() ? ` (before ${said(asBefore(array)[at])})` : "");

/** A number of what the pictures show: of now, of before, or the change from before to now. */
function shown(array, at, of = (value) => value) {
  if (!isChanged() || state.pictures === "now") return of(array[at]);
  const earlier = of(asBefore(array)[at]);
  return state.pictures === "before" ? earlier : of(array[at]) - earlier;
}

const patterns = arrayOf(data.patterns); // (layers, heads, lower triangle): 255 is a share of 1
const TRIANGLE = (L * (L + 1)) / 2;
const rowAt = (layer, head, query) => (layer * HEADS + head) * TRIANGLE + (query * (query + 1)) / 2;
/** The share of its attention that a query gives to a key, as the pictures show it. */
const share = (layer, head, query, key) =>
  key > query ? 0 : shown(patterns, rowAt(layer, head, query) + key) / 255;

const NEXT = 5;
const nextWords = arrayOf(data.next.words); // (L, NEXT)
const nextShares = arrayOf(data.next.shares);
const actual = arrayOf(data.next.actual); // (L): the probability of the token there; NaN for the first
const word = (index) => data.words[index];
/** The word that lens and attribution follow: what is said at the end, without changes. */
const followed = (at) => word(asBefore(nextWords)[at * NEXT]);

/** Words of a list with their probabilities, as bars; word 0 is none, where a vocabulary has fewer. */
function listing(indices, shares, places, onPick) {
  const lines = places
    .filter((i) => indices[i] > 0)
    .map((i) => {
      const part = `${(100 * shares[i]).toFixed(1)}%`;
      const said = code(word(indices[i]), 20);
      const line = make("li", { "--part": part }, said, make("span", {}, percent(shares[i])));
      if (onPick) {
        const button = make("button", { type: "button", title: "write it behind the text" }, said);
        button.addEventListener("click", () => onPick(indices[i]));
        line.prepend(button);
      }
      return line;
    });
  return make("ol", {}, ...lines);
}

/** The same of now and, where something is changed, of before. */
function listings(indices, shares, places, onPick) {
  const ofNow = listing(indices, shares, places, onPick);
  if (!isChanged()) return ofNow;
  const ofBefore = listing(asBefore(indices), asBefore(shares), places);
  const columns = [
    ["now", ofNow],
    ["before", ofBefore],
  ].map(([name, list]) => make("div", {}, make("b", {}, name), list));
  return make("div", { class: "columns" }, ...columns);
}
