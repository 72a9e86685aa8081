// One head, large: as a shaded pattern, or as lines from queries to keys.

const big = make("canvas", { tabindex: "0", role: "img" });
const MARGIN = 110; // for labels, left and above
let cell = 1;
let pattern = null; // of the chosen head, a pixel for each pair
view(["layer", "head", "pictures"], () => {
  pattern = patternPicture(state.layer, state.head, L);
});

function drawShading() {
  const room = Math.min(byId("head-view").clientWidth - 46, 640);
  cell = Math.max(1, Math.min(26, Math.floor((room - MARGIN) / L)));
  const size = cell * L;
  const context = sized(big, MARGIN + size + 20, MARGIN + size + 8);
  big.setAttribute(
    "aria-label",
    `pattern of layer ${state.layer}, head ${state.head}: queries down, keys across`,
  );
  context.imageSmoothingEnabled = false;
  context.drawImage(pattern, MARGIN, MARGIN, size, size);
  context.fillStyle = style("--panel"); // what a query cannot see
  context.beginPath();
  for (const query of range(L))
    context.rect(MARGIN + (query + 1) * cell, MARGIN + query * cell, size - (query + 1) * cell, cell);
  context.fill();
  context.strokeStyle = style("--mark");
  context.lineWidth = 1.5;
  context.strokeRect(MARGIN, MARGIN + looked() * cell, size, cell);
  context.fillStyle = style("--ink");
  context.font = "11px system-ui, sans-serif";
  drawLabels(context);
  context.fillStyle = style("--faint");
  context.textAlign = "left";
  context.textBaseline = "alphabetic";
  context.fillText("key →", 4, 14);
  context.fillText("query ↓", 4, 30);
}

/** As many labels as have room; the one of the token that is looked at among them. */
function drawLabels(context) {
  const every = Math.max(1, Math.ceil(13 / cell));
  const at = looked();
  for (const i of range(L)) {
    const hasRoom = i % every === 0 && (every === 1 || Math.abs(i - at) >= every);
    if (i !== at && !hasRoom) continue;
    const middle = MARGIN + (i + 0.5) * cell;
    context.textBaseline = "middle";
    context.textAlign = "right";
    context.fillText(label(data.tokens[i], 12), MARGIN - 5, middle);
    context.save();
    context.translate(middle, MARGIN - 5);
    context.rotate(-Math.PI / 3);
    context.textAlign = "left";
    context.fillText(label(data.tokens[i], 12), 0, 0);
    context.restore();
  }
}

const LEAST = 0.04; // a smaller share is no line
const [LEFT, RIGHT, LINE, TOP] = [130, 330, 20, 24];

function lines() {
  const name = `lines of layer ${state.layer}, head ${state.head}`;
  const picture = draw("svg", { width: 470, height: L * LINE + TOP, role: "img", "aria-label": name });
  picture.append(draw("text", { x: LEFT, y: 12, "text-anchor": "end", class: "faint" }, "query"));
  picture.append(draw("text", { x: RIGHT, y: 12, class: "faint" }, "key"));
  const y = (at) => TOP + (at + 0.5) * LINE;
  for (const query of state.under === null ? range(L) : [state.under])
    for (const key of range(query + 1)) {
      const change = share(state.layer, state.head, query, key);
      const part = Math.abs(change);
      if (part < LEAST) continue;
      const [x1, x2, y1, y2] = [LEFT + 5, RIGHT - 5, y(query), y(key)];
      const opacity = query === looked() ? 0.25 + 0.75 * part : 0.15 * part;
      const kind = change < 0 ? "less" : "";
      picture.append(draw("line", { x1, x2, y1, y2, class: kind, "stroke-width": 0.5 + 4 * part, opacity }));
    }
  for (const at of range(L))
    for (const [x, anchor] of [
      [LEFT, "end"],
      [RIGHT, "start"],
    ]) {
      const here = at === looked() ? "here" : "";
      const text = draw(
        "text",
        { x, y: y(at) + 4, "text-anchor": anchor, class: here },
        label(data.tokens[at]),
      );
      text.addEventListener("pointerenter", () => choose({ under: at }));
      text.addEventListener("click", () => choose({ token: at, under: null }));
      picture.append(text);
    }
  picture.addEventListener("pointerleave", () => choose({ under: null }));
  return picture;
}

view(["token", "under", "layer", "head", "drawn", "pictures"], () => {
  byId("head-title").textContent = `Layer ${state.layer}, head ${state.head}`;
  if (state.drawn === "shading") drawShading();
  const picture = state.drawn === "shading" ? big : lines();
  if (picture.parentNode !== byId("one-head")) byId("one-head").replaceChildren(picture);
});

view(["token", "under", "key", "layer", "head"], () => {
  const query = looked();
  const row = rowAt(state.layer, state.head, query);
  const given = (key) => patterns[row + key] / 255;
  const most = range(query + 1).sort((a, b) => given(b) - given(a));
  const keys = state.key !== null && state.key <= query ? [state.key] : most.slice(0, 4);
  const earlier = (key) => was(patterns, row + key, (share) => percent(share / 255));
  const told = keys.map((key) => `${label(data.tokens[key])} (${key}) ${percent(given(key))}${earlier(key)}`);
  byId("share").textContent = `${label(data.tokens[query])} (${query}) attends to: ${told.join(", ")}`;
});

/** The query and the key of a place in the large pattern. */
function pairAt(event) {
  const box = big.getBoundingClientRect();
  const [x, y] = [event.clientX - box.left, event.clientY - box.top];
  const [key, query] = [x, y].map((n) => Math.floor((n - MARGIN) / cell));
  const inside = (at) => at >= 0 && at < L;
  return { under: inside(query) ? query : null, key: inside(query) && inside(key) ? key : null };
}

big.addEventListener("pointermove", (event) => choose(pairAt(event)));
big.addEventListener("pointerleave", () => choose({ under: null, key: null }));
big.addEventListener("click", (event) => {
  const { under } = pairAt(event);
  if (under !== null) choose({ token: under });
});
radios("drawn");
