"use strict";
// One page, no network: everything that is drawn lies in the element #data. What is chosen (a token, a layer, a head) is
// one state; each view draws itself again when it changes. Text of a model is data: it goes into textContent alone.

const data = JSON.parse(document.getElementById("data").textContent);
const L = data.tokens.length;
const LAYERS = data.layers;
const HEADS = data.heads;
const SVG = "http://www.w3.org/2000/svg";

const byId = (id) => document.getElementById(id);
const percent = (share) => (share >= 0.0995 ? `${Math.round(100 * share)} %` : `${(100 * share).toFixed(1)} %`);
const clamp = (value, most) => Math.max(0, Math.min(most, value));

/** An element with attributes and children; strings become text. */
function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "style") for (const [property, now] of Object.entries(value)) element.style.setProperty(property, now);
    else element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

function draw(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// ---- the numbers --------------------------------------------------------------------------------------------------

function bytesOf(text) {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i += 1) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

const floatsOf = (text) => new Float32Array(bytesOf(text).buffer);
const integersOf = (text) => new Int32Array(bytesOf(text).buffer);

const patterns = bytesOf(data.patterns); // (layers, heads, lower triangle): 255 is a share of 1
const TRIANGLE = (L * (L + 1)) / 2;
/** The share of its attention that a query gives to a key. */
const share = (layer, head, query, key) =>
  key > query ? 0 : patterns[(layer * HEADS + head) * TRIANGLE + (query * (query + 1)) / 2 + key] / 255;

const nextWords = integersOf(data.next.words); // (L, 5)
const nextShares = floatsOf(data.next.shares);
const actual = floatsOf(data.next.actual); // (L): probability of the token that stands there; NaN for the first
const lensWords = integersOf(data.lens.words); // (rows, L, 10)
const lensShares = floatsOf(data.lens.shares);
const lensFinal = floatsOf(data.lens.final); // (rows, L)
const written = { // by position
  difference: floatsOf(data.attribution.difference),
  embed: floatsOf(data.attribution.embed),
  heads: floatsOf(data.attribution.heads), // (layers, heads, L)
  mlps: floatsOf(data.attribution.mlps), // (layers, L)
  biases: floatsOf(data.attribution.biases),
};
const word = (index) => data.words[index];

/** A token as a label: blanks can be seen, and it is not too long. */
function label(text, longest = 14) {
  const seen = text.replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/ /g, "␣") || "∅";
  const letters = Array.from(seen);
  return letters.length > longest ? `${letters.slice(0, longest - 1).join("")}…` : seen;
}

// ---- what is chosen -----------------------------------------------------------------------------------------------

const state = { token: L - 1, layer: data.start.layer, head: data.start.head, under: null, colour: "listens", lines: false };
const views = [];
/** The token that is looked at: the one under the pointer, else the chosen one. */
const looked = () => (state.under === null ? state.token : state.under);

function choose(changes) {
  Object.assign(state, changes);
  state.token = clamp(state.token, L - 1);
  state.layer = clamp(state.layer, LAYERS - 1);
  state.head = clamp(state.head, HEADS - 1);
  for (const view of views) view(changes);
}

const styles = getComputedStyle(document.documentElement);
let ink = [];
let paper = [];
function readColours() {
  const parse = (name) => {
    const hex = styles.getPropertyValue(name).trim().slice(1);
    return [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16));
  };
  paper = parse("--paper");
  ink = styles.getPropertyValue("--share").split(",").map(Number);
}
/** From paper to ink; small shares are lifted, so that they can be seen. */
const shade = (value) => {
  const at = Math.sqrt(clamp(value, 1));
  return paper.map((from, i) => Math.round(from + (ink[i] - from) * at));
};
const css = (colour) => `rgb(${colour.join(",")})`;
/** Text that can be read on a colour. */
const onTop = (colour) => (colour[0] * 0.3 + colour[1] * 0.59 + colour[2] * 0.11 > 140 ? "#111418" : "#f4f6f8");

function sized(canvas, width, height) {
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  return context;
}

// ---- the text -----------------------------------------------------------------------------------------------------

const spans = data.tokens.map((text, at) => {
  const span = make("span", { role: "option", id: `token-${at}`, title: `${at}: ${label(text, 40)}` });
  span.textContent = text || "∅";
  span.addEventListener("pointerenter", () => choose({ under: at }));
  span.addEventListener("pointerleave", () => choose({ under: null }));
  span.addEventListener("click", () => choose({ token: at }));
  return span;
});
byId("text").append(...spans);

function tokenShade(at) {
  if (state.colour === "listens") return share(state.layer, state.head, looked(), at);
  if (Number.isNaN(actual[at])) return 0;
  return state.colour === "probability" ? actual[at] ** 2 : Math.min(1, -Math.log(actual[at]) / 10) ** 2;
}

function listing(words, shares) {
  const list = make("ol");
  words.forEach((text, i) => {
    const line = make("li", { style: { "--part": `${(100 * shares[i]).toFixed(1)}%` } });
    line.append(make("code", {}, label(text, 20)), make("span", {}, percent(shares[i])));
    list.append(line);
  });
  return list;
}

views.push(() => {
  spans.forEach((span, at) => {
    const colour = shade(tokenShade(at));
    span.style.backgroundColor = css(colour);
    span.style.color = onTop(colour);
    span.classList.toggle("here", at === state.token);
    span.setAttribute("aria-selected", String(at === state.token));
  });
  byId("text").setAttribute("aria-activedescendant", `token-${state.token}`);
  const at = looked();
  const own = Number.isNaN(actual[at])
    ? "the first token: nothing foretells it"
    : `probability ${percent(actual[at])}, loss ${(-Math.log(actual[at])).toFixed(2)}`;
  const words = [0, 1, 2, 3, 4].map((i) => word(nextWords[at * 5 + i]));
  const shares = [0, 1, 2, 3, 4].map((i) => nextShares[at * 5 + i]);
  const head = make("div", {}, `token ${at} `, make("code", {}, label(data.tokens[at], 30)), `: ${own}. Next it expects:`);
  byId("next").replaceChildren(head, listing(words, shares));
});

for (const input of document.querySelectorAll("input[name=colour]"))
  input.addEventListener("change", () => choose({ colour: input.value }));

// ---- all heads ----------------------------------------------------------------------------------------------------

const THUMBNAIL = 56;
/** A small picture of a pattern: of the shares that fall into one pixel, the largest. */
function thumbnail(canvas, layer, head) {
  const size = Math.min(L, THUMBNAIL);
  canvas.width = size;
  canvas.height = size;
  const context = canvas.getContext("2d");
  const picture = context.createImageData(size, size);
  const most = new Float32Array(size * size);
  for (let query = 0; query < L; query += 1)
    for (let key = 0; key <= query; key += 1) {
      const at = Math.floor((query * size) / L) * size + Math.floor((key * size) / L);
      most[at] = Math.max(most[at], share(layer, head, query, key));
    }
  most.forEach((value, at) => picture.data.set([...shade(value), 255], 4 * at));
  context.putImageData(picture, 0, 0);
}

const thumbs = [];
byId("heads").style.gridTemplateColumns = `max-content repeat(${HEADS}, max-content)`;
for (let layer = 0; layer < LAYERS; layer += 1) {
  byId("heads").append(make("div", { class: "of-layer" }, String(layer)));
  for (let head = 0; head < HEADS; head += 1) {
    const canvas = make("canvas", { "aria-hidden": "true" });
    const score = make("span");
    const button = make("button", { type: "button", "aria-label": `layer ${layer}, head ${head}`, tabindex: "-1" }, canvas, score);
    button.addEventListener("click", () => choose({ layer, head }));
    byId("heads").append(button);
    thumbs.push({ button, canvas, score, layer, head });
  }
}

const drawThumbnails = () => thumbs.forEach(({ canvas, layer, head }) => thumbnail(canvas, layer, head));
for (const name of Object.keys(data.scores)) byId("score").append(make("option", { value: name }, name.replace(/_/g, " ")));
function showScores() {
  const name = byId("score").value;
  byId("score-means").textContent = data.means[name] || "";
  for (const { score, layer, head } of thumbs) {
    const value = data.scores[name][layer][head];
    score.textContent = value === null ? "–" : value.toFixed(2);
  }
}
byId("score").addEventListener("change", showScores);
views.push((changes) => {
  if (!("layer" in changes || "head" in changes)) return;
  for (const { button, layer, head } of thumbs) {
    const here = layer === state.layer && head === state.head;
    button.classList.toggle("here", here);
    button.tabIndex = here ? 0 : -1;
    button.setAttribute("aria-pressed", String(here));
  }
});

// ---- one head -----------------------------------------------------------------------------------------------------

const big = make("canvas", { tabindex: "0", role: "img" });
const MARGIN = 110;
let cell = 1;

function drawHead() {
  const room = Math.max(220, byId("head-view").clientWidth - 50);
  cell = clamp(Math.floor((Math.min(room, 640) - MARGIN) / L), 26) || 1;
  const size = cell * L;
  const context = sized(big, MARGIN + size + 20, MARGIN + size);
  const at = looked();
  big.setAttribute("aria-label", `attention of layer ${state.layer}, head ${state.head}: queries down, keys across`);
  for (let query = 0; query < L; query += 1)
    for (let key = 0; key < L; key += 1) {
      context.fillStyle = key > query ? styles.getPropertyValue("--panel") : css(shade(share(state.layer, state.head, query, key)));
      context.fillRect(MARGIN + key * cell, MARGIN + query * cell, cell, cell);
    }
  context.strokeStyle = styles.getPropertyValue("--mark");
  context.lineWidth = 1.5;
  context.strokeRect(MARGIN, MARGIN + at * cell, size, cell);
  context.fillStyle = styles.getPropertyValue("--ink");
  context.font = "11px system-ui, sans-serif";
  const every = Math.max(1, Math.ceil(13 / cell));
  for (let i = 0; i < L; i += 1) {
    if (i % every !== 0 && i !== at) continue;
    if (every > 1 && i !== at && Math.abs(i - at) < every) continue; // makes room for the chosen one
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.fillText(label(data.tokens[i], 12), MARGIN - 5, MARGIN + (i + 0.5) * cell);
    context.save();
    context.translate(MARGIN + (i + 0.5) * cell, MARGIN - 5);
    context.rotate(-Math.PI / 3);
    context.textAlign = "left";
    context.fillText(label(data.tokens[i], 12), 0, 0);
    context.restore();
  }
  context.fillStyle = styles.getPropertyValue("--faint");
  context.textAlign = "left";
  context.textBaseline = "alphabetic";
  context.fillText("key →", 4, 14);
  context.fillText("query ↓", 4, 30);
}

const THIN = 0.04; // a share below it is no line
function drawLines() {
  const height = 20;
  const [left, right] = [130, 330];
  const picture = draw("svg", { width: 470, height: L * height + 24, role: "img", "aria-label": `lines of layer ${state.layer}, head ${state.head}` });
  picture.append(draw("text", { x: left, y: 12, "text-anchor": "end", class: "faint" }, "query"), draw("text", { x: right, y: 12, class: "faint" }, "key"));
  const y = (at) => 24 + (at + 0.5) * height;
  const only = state.under;
  for (let query = 0; query < L; query += 1) {
    if (only !== null && query !== only) continue;
    for (let key = 0; key <= query; key += 1) {
      const part = share(state.layer, state.head, query, key);
      if (part < THIN) continue;
      const strong = only !== null || query === state.token;
      picture.append(draw("line", { x1: left + 5, y1: y(query), x2: right - 5, y2: y(key), stroke: styles.getPropertyValue("--mark"), "stroke-width": 0.5 + 4 * part, opacity: strong ? 0.25 + 0.75 * part : 0.15 * part }));
    }
  }
  data.tokens.forEach((text, at) => {
    const here = at === looked();
    for (const [x, anchor] of [[left, "end"], [right, "start"]]) {
      const name = draw("text", { x, y: y(at) + 4, "text-anchor": anchor, "font-weight": here ? 700 : 400, cursor: "pointer" }, label(text));
      name.addEventListener("pointerenter", () => state.under !== at && choose({ under: at }));
      name.addEventListener("click", () => choose({ token: at, under: null }));
      picture.append(name);
    }
  });
  picture.addEventListener("pointerleave", () => choose({ under: null }));
  return picture;
}

function tokenAt(event) {
  const box = big.getBoundingClientRect();
  const [key, query] = [event.clientX - box.left, event.clientY - box.top].map((n) => Math.floor((n - MARGIN) / cell));
  return query >= 0 && query < L ? { query, key: key >= 0 && key < L ? key : null } : null;
}
let pointed = null; // a key under the pointer
big.addEventListener("pointermove", (event) => {
  const at = tokenAt(event);
  pointed = at && at.key;
  choose({ under: at ? at.query : null });
});
big.addEventListener("pointerleave", () => {
  pointed = null;
  choose({ under: null });
});
big.addEventListener("click", (event) => {
  const at = tokenAt(event);
  if (at) choose({ token: at.query });
});

views.push(() => {
  byId("head-title").textContent = `Layer ${state.layer}, head ${state.head}`;
  if (state.lines) byId("one-head").replaceChildren(drawLines());
  else {
    drawHead();
    if (big.parentNode !== byId("one-head")) byId("one-head").replaceChildren(big);
  }
  const query = looked();
  const keys = Array.from({ length: query + 1 }, (_, key) => key).sort((a, b) => share(state.layer, state.head, query, b) - share(state.layer, state.head, query, a));
  const first = pointed !== null && pointed <= query ? [pointed] : keys.slice(0, 4);
  const told = first.map((key) => `${label(data.tokens[key])} (${key}) ${percent(share(state.layer, state.head, query, key))}`);
  byId("share").textContent = `${label(data.tokens[query])} (${query}) listens to: ${told.join(", ")}`;
});
for (const input of document.querySelectorAll("input[name=drawn]"))
  input.addEventListener("change", () => choose({ lines: input.value === "lines" }));

// ---- the lens -----------------------------------------------------------------------------------------------------

const lens = byId("lens");
const ROWS = data.lens.layers.length;
const LENS_LEFT = 84;
let lensCell = 10;
const LENS_ROW = 20;
let lensRow = ROWS - 1;

views.push(() => {
  const room = byId("lens-view").clientWidth - 40 - LENS_LEFT;
  lensCell = L <= 60 ? 54 : Math.max(6, Math.floor(room / L)); // few words can be read, many are a picture
  const context = sized(lens, LENS_LEFT + L * lensCell + 4, ROWS * LENS_ROW + 4);
  context.textBaseline = "middle";
  for (let row = 0; row < ROWS; row += 1) {
    const y = (ROWS - 1 - row) * LENS_ROW; // the last layer on top
    context.fillStyle = styles.getPropertyValue("--faint");
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "right";
    const layer = data.lens.layers[row];
    context.fillText(layer < 0 ? "embedding" : `layer ${layer}`, LENS_LEFT - 6, y + LENS_ROW / 2);
    context.textAlign = "left";
    for (let at = 0; at < L; at += 1) {
      const colour = shade(lensFinal[row * L + at]);
      context.fillStyle = css(colour);
      context.fillRect(LENS_LEFT + at * lensCell, y, lensCell - (lensCell > 8 ? 1 : 0), LENS_ROW - 1);
      if (lensCell >= 30) {
        context.fillStyle = onTop(colour);
        context.font = "10px system-ui, sans-serif";
        context.fillText(label(word(lensWords[(row * L + at) * 10]), Math.floor(lensCell / 7)), LENS_LEFT + at * lensCell + 2, y + LENS_ROW / 2, lensCell - 4);
      }
    }
  }
  const at = looked();
  context.strokeStyle = styles.getPropertyValue("--mark");
  context.lineWidth = 2;
  context.strokeRect(LENS_LEFT + at * lensCell, (ROWS - 1 - lensRow) * LENS_ROW, lensCell, LENS_ROW - 1);
  const view = lens.parentElement;
  const left = LENS_LEFT + at * lensCell;
  if (left < view.scrollLeft + LENS_LEFT || left + lensCell > view.scrollLeft + view.clientWidth) view.scrollLeft = left - view.clientWidth / 2;
  const start = (lensRow * L + at) * 10;
  const ten = Array.from({ length: 10 }, (_, i) => start + i);
  const layer = data.lens.layers[lensRow];
  const where = layer < 0 ? "After the embedding" : `After layer ${layer}`;
  const final = word(nextWords[at * 5]);
  const head = make("div", {}, `${where}, behind `, make("code", {}, label(data.tokens[at], 20)), `: the final word `, make("code", {}, label(final, 20)), ` has ${percent(lensFinal[lensRow * L + at])}`);
  byId("lens-words").replaceChildren(head, listing(ten.map((i) => word(lensWords[i])), ten.map((i) => lensShares[i])));
});

function lensAt(event) {
  const box = lens.getBoundingClientRect();
  const at = Math.floor((event.clientX - box.left - LENS_LEFT) / lensCell);
  const row = ROWS - 1 - Math.floor((event.clientY - box.top) / LENS_ROW);
  return at >= 0 && at < L && row >= 0 && row < ROWS ? { at, row } : null;
}
lens.addEventListener("pointermove", (event) => {
  const place = lensAt(event);
  if (place === null) return;
  lens.title = `layer ${data.lens.layers[place.row]}, ${label(data.tokens[place.at])}: ${label(word(lensWords[(place.row * L + place.at) * 10]))}`;
});
lens.addEventListener("click", (event) => {
  const place = lensAt(event);
  if (place === null) return;
  lensRow = place.row;
  const layer = data.lens.layers[place.row];
  choose({ token: place.at, ...(layer < 0 ? {} : { layer }) });
});
views.push((changes) => {
  if (!("layer" in changes)) return;
  const row = data.lens.layers.indexOf(state.layer);
  if (row >= 0 && row !== lensRow && data.lens.layers[lensRow] !== -1) lensRow = row;
});

// ---- attribution --------------------------------------------------------------------------------------------------

function bars(parts) {
  const most = Math.max(1e-9, ...parts.map(({ value }) => Math.abs(value)));
  return parts.map(({ name, value, here, then }) => {
    const wide = (50 * Math.abs(value)) / most;
    const bar = make("button", { type: "button", class: here ? "bar here" : "bar" });
    const line = make("i", { style: { "--from": `${value < 0 ? 50 - wide : 50}%`, "--wide": `${wide}%`, "--colour": value < 0 ? "var(--warm)" : "var(--mark)" } });
    bar.append(make("span", {}, name), line, make("b", {}, (value < 0 ? "−" : "+") + Math.abs(value).toFixed(2)));
    if (then) bar.addEventListener("click", then);
    return bar;
  });
}

views.push(() => {
  const at = state.token;
  const target = label(word(nextWords[at * 5]), 20);
  const against = data.attribution.against === null ? "" : ` against “${label(data.attribution.against, 20)}”`;
  byId("attribution-of").textContent = `Behind token ${at}, ${label(data.tokens[at], 20)}: what each part writes into the logit of “${data.attribution.against === null ? target : label(data.attribution.target, 20)}”${against}; in all ${written.difference[at].toFixed(2)}.`;
  const layers = [{ name: "embedding", value: written.embed[at] }];
  for (let layer = 0; layer < LAYERS; layer += 1) {
    let sum = written.biases[layer * L + at];
    for (let head = 0; head < HEADS; head += 1) sum += written.heads[(layer * HEADS + head) * L + at];
    const then = () => choose({ layer });
    layers.push({ name: `layer ${layer} heads`, value: sum, here: layer === state.layer, then });
    layers.push({ name: `layer ${layer} MLP`, value: written.mlps[layer * L + at], here: layer === state.layer, then });
  }
  const heads = Array.from({ length: HEADS }, (_, head) => ({
    name: `head ${state.layer}.${head}`,
    value: written.heads[(state.layer * HEADS + head) * L + at],
    here: head === state.head,
    then: () => choose({ head }),
  }));
  byId("by-layer").replaceChildren(...bars(layers));
  byId("by-head").replaceChildren(...bars(heads));
});

// ---- one layer as a picture ---------------------------------------------------------------------------------------

// name: x, y (in boxes), what it is made of
const FLOW = {
  "resid_pre": [2, 0, []],
  "attn_norm": [2, 1, ["resid_pre"]],
  "attn.q": [0.6, 2, ["attn_norm"]],
  "attn.k": [2, 2, ["attn_norm"]],
  "attn.v": [3.4, 2, ["attn_norm"]],
  "attn.q_rot": [0.6, 3, ["attn.q"]],
  "attn.k_rot": [2, 3, ["attn.k"]],
  "attn.scores": [1.3, 4, ["attn.q_rot", "attn.k_rot"]],
  "attn.pattern": [1.3, 5, ["attn.scores"]],
  "attn.z": [2, 6, ["attn.pattern", "attn.v"]],
  "attn.out": [2, 7, ["attn.z"]],
  "resid_mid": [2, 8, ["attn.out"]],
  "mlp_norm": [2, 9, ["resid_mid"]],
  "mlp.gate": [1.3, 10, ["mlp_norm"]],
  "mlp.up": [2.7, 10, ["mlp_norm"]],
  "mlp.act": [2, 11, ["mlp.gate", "mlp.up"]],
  "mlp.out": [2, 12, ["mlp.act"]],
  "resid_post": [2, 13, ["mlp.out"]],
};
const [BOX_WIDE, BOX_HIGH, STEP_X, STEP_Y] = [122, 34, 134, 50];
const numbersOf = {};
for (const [name, found] of Object.entries(data.activations))
  numbersOf[name] = { shape: found.shape, rms: floatsOf(found.rms), first: floatsOf(found.first), count: found.count };
let shown = "resid_post";

function flow() {
  const picture = draw("svg", { width: 4.85 * STEP_X, height: 14 * STEP_Y, viewBox: `0 0 ${4.85 * STEP_X} ${14 * STEP_Y}`, role: "group", "aria-label": "data flow of a layer" });
  const centre = ([x, y]) => [30 + x * STEP_X * 0.92 + BOX_WIDE / 2, 6 + y * STEP_Y + BOX_HIGH / 2];
  const known = Object.keys(FLOW).filter((name) => name in numbersOf);
  for (const name of known)
    for (const from of FLOW[name][2]) {
      if (!(from in numbersOf)) continue;
      const [x1, y1] = centre(FLOW[from]);
      const [x2, y2] = centre(FLOW[name]);
      picture.append(draw("path", { d: `M${x1},${y1 + BOX_HIGH / 2} C${x1},${y1 + 30} ${x2},${y2 - 30} ${x2},${y2 - BOX_HIGH / 2}` }));
    }
  for (const [from, to] of [["resid_pre", "resid_mid"], ["resid_mid", "resid_post"]]) {
    const [x1, y1] = centre(FLOW[from]);
    const [x2, y2] = centre(FLOW[to]);
    const side = 4.95 * STEP_X;
    picture.append(draw("path", { class: "stream", d: `M${x1 + BOX_WIDE / 2},${y1} C${side},${y1} ${side},${y2} ${x2 + BOX_WIDE / 2},${y2}` }));
  }
  for (const name of known) {
    const [x, y] = centre(FLOW[name]);
    const box = draw("g", { role: "button", tabindex: "0", class: name === shown ? "here" : "", "aria-label": `${name}, ${numbersOf[name].shape.join(" by ")}` });
    box.append(
      draw("rect", { x: x - BOX_WIDE / 2, y: y - BOX_HIGH / 2, width: BOX_WIDE, height: BOX_HIGH }),
      draw("text", { x, y: y - 2, "text-anchor": "middle" }, name),
      draw("text", { x, y: y + 12, "text-anchor": "middle", class: "faint" }, numbersOf[name].shape.join(" × ")),
    );
    const show = () => {
      shown = name;
      choose({});
    };
    box.addEventListener("click", show);
    box.addEventListener("keydown", (event) => event.key === "Enter" && show());
    picture.append(box);
  }
  return picture;
}

views.push(() => {
  byId("layer-title").textContent = `Layer ${state.layer}`;
  const focused = document.activeElement && document.activeElement.getAttribute("aria-label");
  const again = byId("flow").contains(document.activeElement);
  byId("flow").replaceChildren(flow());
  if (again) for (const box of byId("flow").querySelectorAll("g")) if (box.getAttribute("aria-label") === focused) box.focus();
  const { rms, first, count } = numbersOf[shown];
  const at = state.token;
  const row = state.layer * L + at;
  const some = Array.from(first.subarray(row * count, (row + 1) * count), (n) => (Number.isNaN(n) ? "" : n.toPrecision(3)));
  const line = make("div", {}, make("code", {}, shown), ` of token ${at}, `, make("code", {}, label(data.tokens[at], 20)), `: root mean square ${rms[row].toPrecision(3)}; its first numbers `);
  line.append(make("code", {}, some.filter((n) => n !== "").join("  ")));
  byId("numbers").replaceChildren(line);
});

// ---- the head of the page, the keys -------------------------------------------------------------------------------

document.title = `${data.title} · simdformer`;
byId("title").textContent = data.title;
byId("about").textContent = data.about;
const fields = { layer: LAYERS, head: HEADS, token: L };
for (const [name, count] of Object.entries(fields)) {
  const input = byId(name);
  input.max = String(count - 1);
  input.addEventListener("change", () => choose({ [name]: Number(input.value) || 0 }));
}
views.push(() => {
  for (const name of Object.keys(fields)) if (document.activeElement !== byId(name)) byId(name).value = state[name];
});

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  readColours();
  drawThumbnails();
  choose({ layer: state.layer });
}
const otherTheme = () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
byId("theme").addEventListener("click", otherTheme);
byId("help").addEventListener("click", () => byId("keys").showModal());

const KEYS = {
  ArrowLeft: () => ({ token: state.token - 1 }),
  ArrowRight: () => ({ token: state.token + 1 }),
  ArrowUp: () => ({ layer: state.layer + 1 }),
  ArrowDown: () => ({ layer: state.layer - 1 }),
  "[": () => ({ head: state.head - 1 }),
  "]": () => ({ head: state.head + 1 }),
  Escape: () => ({ under: null, token: L - 1 }),
};
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("keys").open) return;
  if (["INPUT", "SELECT"].includes(event.target.tagName) && event.target.type !== "radio") return;
  if (event.key === "t") otherTheme();
  else if (event.key === "?") byId("keys").showModal();
  else if (event.key in KEYS && event.target.type !== "radio") {
    event.preventDefault();
    choose(KEYS[event.key]());
  }
});

let waiting = 0;
window.addEventListener("resize", () => {
  cancelAnimationFrame(waiting);
  waiting = requestAnimationFrame(() => choose({}));
});
const dark = window.matchMedia("(prefers-color-scheme: dark)");
dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
showScores();
setTheme(dark.matches ? "dark" : "light");
document.documentElement.dataset.ready = "yes";
