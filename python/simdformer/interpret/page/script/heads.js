// All heads as thumbnails, layers down and heads across.

/** A pattern as a picture of size by size: of what falls into one pixel, the largest. */
function patternPicture(layer, head, size, canvas = document.createElement("canvas")) {
  canvas.width = size;
  canvas.height = size;
  const context = canvas.getContext("2d");
  const picture = context.createImageData(size, size);
  const most = new Int16Array(size * size);
  for (let query = 0; query < L; query += 1) {
    const [from, to] = [rowAt(layer, head, query), Math.floor((query * size) / L) * size];
    for (let key = 0; key <= query; key += 1) {
      const at = to + Math.floor((key * size) / L);
      const value = shown(patterns, from + key);
      if (Math.abs(value) > Math.abs(most[at])) most[at] = value;
    }
  }
  const colours = new Uint32Array(picture.data.buffer);
  for (let at = 0; at < most.length; at += 1) colours[at] = palette[255 + most[at]];
  context.putImageData(picture, 0, 0);
  return canvas;
}

const FINEST = 180; // pixels of a thumbnail
const thumbs = [];
const widest = clamp(690 / LAYERS - 18, 180); // so that all layers are in sight, where that can be
byId("heads").style.gridTemplateColumns =
  `max-content repeat(${HEADS}, minmax(52px, ${Math.max(52, widest)}px))`;
for (const layer of range(LAYERS)) {
  byId("heads").append(make("div", { class: "of-layer" }, String(layer)));
  for (const head of range(HEADS)) {
    const canvas = make("canvas", { "aria-hidden": "true" });
    const score = make("span");
    const name = `layer ${layer}, head ${head}`;
    const button = make("button", { type: "button", "aria-label": name, title: name }, canvas, score);
    button.addEventListener("click", () => pick({ layer, head }, { part: "head", layer, at: head }));
    byId("heads").append(button);
    thumbs.push({ button, canvas, score, layer, head });
  }
}

/** A thumbnail is drawn when it comes into sight, in the colours of then. */
const sight = new IntersectionObserver(
  (entries) => {
    for (const { target } of entries.filter((entry) => entry.isIntersecting)) {
      const { layer, head } = thumbs.find(({ canvas }) => canvas === target);
      patternPicture(layer, head, Math.min(L, FINEST), target);
      sight.unobserve(target);
    }
  },
  { rootMargin: "200px" },
);

view(["pictures"], () => {
  for (const { canvas } of thumbs) {
    sight.unobserve(canvas);
    sight.observe(canvas);
  }
});

view(["layer", "head"], () => {
  for (const { button, layer, head } of thumbs) {
    const here = layer === state.layer && head === state.head;
    button.classList.toggle("here", here);
    button.tabIndex = here ? 0 : -1;
    button.setAttribute("aria-pressed", String(here));
  }
});

const scores = {}; // (layers, heads) each; NaN where a text has no such place
for (const [name, place] of Object.entries(data.scores)) {
  scores[name] = arrayOf(place);
  byId("score").append(make("option", { value: name }, name.replace(/_/g, " ")));
}
byId("score").value = state.score;
byId("score").addEventListener("change", () => choose({ score: byId("score").value }));
view(["score"], () => {
  byId("score-means").textContent = data.means[state.score];
  for (const { score, layer, head } of thumbs) {
    const value = scores[state.score][layer * HEADS + head];
    score.textContent = Number.isNaN(value) ? "–" : value.toFixed(2);
  }
});
