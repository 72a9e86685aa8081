// The logit lens: what the model would say after each layer, the last one on top.

const TOP_WORDS = 10;
const ROWS = data.lens.layers.length;
const ROW = 20; // pixels, as in page.css
const lensWords = arrayOf(data.lens.words); // (ROWS, L, TOP_WORDS)
const lensShares = arrayOf(data.lens.shares);
const lensFinal = arrayOf(data.lens.final); // (ROWS, L)
const lens = byId("lens");
let column = 10;

const rowName = (row) => (data.lens.layers[row] < 0 ? "embedding" : `layer ${data.lens.layers[row]}`);
byId("lens-rows").append(...range(ROWS).map((row) => make("div", {}, rowName(ROWS - 1 - row))));

/** Whether a cell has been computed, now and before. */
function isKnown(row, at) {
  const first = (row * L + at) * TOP_WORDS;
  return lensWords[first] > 0 && asBefore(lensWords)[first] > 0;
}
const isColumnKnown = (at) => range(ROWS).every((row) => isKnown(row, at));

view(["pictures"], () => {
  const room = byId("lens-view").clientWidth - 110;
  column = L <= 60 ? Math.max(54, Math.floor(room / L)) : Math.max(6, Math.floor(room / L));
  const readable = column >= 30; // few words can be read, many are a picture
  const context = sized(lens, L * column, (ROWS + 1) * ROW);
  context.textBaseline = "middle";
  context.font = "10px system-ui, sans-serif";
  const words = state.pictures === "before" ? asBefore(lensWords) : lensWords;
  const text = (said, at, y) =>
    context.fillText(label(said, Math.floor(column / 7)), at * column + 2, y + ROW / 2, column - 4);
  for (const at of range(L)) {
    for (const row of range(ROWS)) {
      const y = (ROWS - 1 - row) * ROW;
      if (!isKnown(row, at)) {
        context.fillStyle = style("--line");
        context.fillRect(at * column + column / 2 - 1, y + ROW / 2 - 1, 2, 2);
        continue;
      }
      const colour = shade(shown(lensFinal, row * L + at));
      context.fillStyle = css(colour);
      context.fillRect(at * column, y, column - (readable ? 1 : 0), ROW - 1);
      context.fillStyle = onTop(colour);
      if (readable) text(word(words[(row * L + at) * TOP_WORDS]), at, y);
    }
    context.fillStyle = style("--faint");
    if (readable) text(data.tokens[at], at, ROWS * ROW);
  }
});

view(["token", "under", "lensRow"], () => {
  const mark = byId("lens-mark").style;
  mark.left = `${looked() * column}px`;
  mark.top = `${(ROWS - 1 - state.lensRow) * ROW}px`;
  mark.width = `${column}px`;
});

let scrolledTo = state.token;
view(["token"], () => {
  if (scrolledTo === state.token) return; // it begins, and is drawn again, where it is
  scrolledTo = state.token;
  const scrolled = lens.parentElement;
  const left = state.token * column;
  const isSeen = left >= scrolled.scrollLeft && left + column <= scrolled.scrollLeft + scrolled.clientWidth;
  if (!isSeen) scrolled.scrollLeft = left - scrolled.clientWidth / 2;
});

view(["token", "under", "lensRow"], () => {
  const at = looked();
  const cellAt = state.lensRow * L + at;
  const place = [`After ${rowName(state.lensRow)}, behind `, code(data.tokens[at], 20)];
  if (!isKnown(state.lensRow, at)) {
    byId("lens-words").replaceChildren(...place, ": not computed yet; choose the token for that");
    return;
  }
  byId("lens-words").replaceChildren(
    make(
      "div",
      {},
      ...place,
      ": the final word ",
      code(followed(at), 20),
      ` has ${percent(lensFinal[cellAt])}${was(lensFinal, cellAt, percent)}`,
    ),
    listings(lensWords, lensShares, range(TOP_WORDS, cellAt * TOP_WORDS)),
  );
});

// ---- what is not computed yet: a kernel is asked for it

let isInSight = false;
let askedFor = null;

/** Asks for the chosen token, where one can see it. */
function askForColumn() {
  if (!hooks.lens || !isInSight || askedFor === state.token || isColumnKnown(state.token)) return;
  askedFor = state.token;
  hooks.lens([state.token]);
}

view(["token"], askForColumn);
view([], () => {
  askedFor = null; // an answer has come
  askForColumn();
  byId("lens-all").parentElement.hidden = !hooks.lens || range(L).every(isColumnKnown);
});
byId("lens-all").addEventListener("click", () => hooks.lens(null));
new IntersectionObserver(([entry]) => {
  isInSight = entry.isIntersecting;
  askForColumn();
}).observe(byId("lens-view"));

/** The token and the row of a place; null beside them. */
function lensAt(event) {
  const box = lens.getBoundingClientRect();
  const token = Math.floor((event.clientX - box.left) / column);
  const row = ROWS - 1 - Math.floor((event.clientY - box.top) / ROW);
  return token >= 0 && token < L && row >= 0 && row < ROWS ? { token, row } : null;
}

lens.addEventListener("pointermove", (event) => {
  const place = lensAt(event);
  choose({ under: place?.token ?? null });
  if (place === null) return;
  const said = isKnown(place.row, place.token)
    ? label(word(lensWords[(place.row * L + place.token) * TOP_WORDS]))
    : "…";
  lens.title = `${rowName(place.row)}, ${label(data.tokens[place.token])}: ${said}`;
});
lens.addEventListener("pointerleave", () => choose({ under: null }));
lens.addEventListener("click", (event) => {
  const place = lensAt(event);
  if (place === null) return;
  const layer = data.lens.layers[place.row];
  choose({ token: place.token, layer: layer < 0 ? state.layer : layer });
  pick({ lensRow: place.row }, { part: "position", layer: layer + 1, at: place.token });
});
view(["layer"], () => choose({ lensRow: data.lens.layers.indexOf(state.layer) }));
