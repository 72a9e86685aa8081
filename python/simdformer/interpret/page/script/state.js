// What is chosen is one state; a view draws itself again when something changes that it depends on.

const state = {
  token: L - 1, // chosen
  under: null, // the token under the pointer
  key: null, // a key under the pointer, in the large pattern
  layer: data.start.layer,
  head: data.start.head,
  lensRow: data.lens.layers.length - 1,
  activation: "resid_post",
  score: Object.keys(data.scores)[0],
  colour: "attends",
  drawn: "shading",
  asks: "without",
  curve: "loss",
  pictures: "now",
  ...hooks.kept,
};
const LIMITS = { token: L, layer: LAYERS, head: HEADS };
const views = [];

/** The token that is looked at: the one under the pointer, else the chosen one. */
const looked = () => state.under ?? state.token;

/** `show` draws a view; it depends on these names of the state. */
function view(names, show) {
  views.push({ names, show });
}

function choose(changes) {
  const changed = new Set();
  for (const [name, wanted] of Object.entries(changes)) {
    const value = name in LIMITS ? clamp(wanted, LIMITS[name] - 1) : wanted;
    if (state[name] !== value) changed.add(name);
    state[name] = value;
  }
  for (const { names, show } of views) if (names.some((name) => changed.has(name))) show();
  if (Object.keys(LIMITS).some((name) => changed.has(name))) hooks.chosen?.(state);
}

function drawEverything() {
  for (const { show } of views) show();
}

/** A click: it chooses, and in a notebook may change what was clicked on. */
function pick(choice, place) {
  choose(choice);
  hooks.pick?.(place);
}

/** Radio buttons of that name choose it. */
function radios(name) {
  for (const input of root.querySelectorAll(`input[name=${name}]`)) {
    input.checked = input.value === state[name];
    input.addEventListener("change", () => choose({ [name]: input.value }));
  }
}

// ---- colours

const themed = root.host ?? document.documentElement; // has the theme
const styles = getComputedStyle(themed);
const style = (name) => styles.getPropertyValue(name).trim();
let paper = [];
let ink = [];
let warm = []; // of what has become less
const palette = new Uint32Array(511); // the colour of each change of 8-bit shares, -255 first, as canvases have it

function readColours() {
  const numbers = (name) => style(name).split(",").map(Number);
  [paper, ink, warm] = [numbers("--none"), numbers("--share"), numbers("--less")];
  const bytes = new Uint8ClampedArray(palette.buffer);
  for (const at of range(511)) bytes.set([...shade((at - 255) / 255), 255], 4 * at);
}

/** From paper to ink, below 0 to another colour; small shares are lifted, so that they can be seen. */
function shade(value) {
  const at = Math.sqrt(Math.min(1, Math.abs(value)));
  const to = value < 0 ? warm : ink;
  return paper.map((from, i) => Math.round(from + (to[i] - from) * at));
}

const css = (colour) => `rgb(${colour.join(",")})`;
/** Text that can be read on a colour. */
const onTop = ([red, green, blue]) => (red * 0.3 + green * 0.59 + blue * 0.11 > 140 ? "#111418" : "#f4f6f8");

/** A canvas of that size in pixels of the page, sharp on every screen. */
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

// ---- legends

for (const legend of root.querySelectorAll("[data-legend]"))
  legend.append(make("span"), make("canvas", { width: 90, height: 1, "aria-hidden": "true" }), make("span"));

/** From none to all; a shade is the square root of the share, so that small ones can be seen. */
function drawLegends() {
  for (const legend of root.querySelectorAll("[data-legend]")) {
    const [none, strip, all] = legend.children;
    const isLoss = legend.dataset.legend === "shade" && state.colour === "loss";
    const isShare = legend.dataset.legend === "share" || state.colour === "attends";
    none.textContent = isLoss ? "loss 0" : "0 %";
    const less = state.pictures === "change" && isChanged() ? "; less in the other colour" : "";
    all.textContent = (isLoss ? "10" : `100 %${isShare ? " (shade: the square root)" : ""}`) + less;
    const context = strip.getContext("2d");
    for (const x of range(90)) {
      context.fillStyle = css(shade(isShare ? x / 89 : (x / 89) ** 2));
      context.fillRect(x, 0, 1, 1);
    }
  }
}
view(["colour", "pictures"], drawLegends);
