// The head of the page, the keys, dark and light.

document.title = `${data.title} · simdformer`;
byId("title").textContent = data.title;
byId("about").textContent = data.about;
for (const [name, count] of Object.entries(LIMITS)) {
  const input = byId(name);
  input.max = String(count - 1);
  input.addEventListener("change", () => {
    choose({ [name]: Math.trunc(Number(input.value)) || 0 });
    input.value = state[name];
  });
  view([name], () => {
    if (document.activeElement !== input) input.value = state[name];
  });
}

const KEYS = {
  ArrowLeft: () => choose({ token: state.token - 1 }),
  ArrowRight: () => choose({ token: state.token + 1 }),
  ArrowUp: () => choose({ layer: state.layer + 1 }),
  ArrowDown: () => choose({ layer: state.layer - 1 }),
  "[": () => choose({ head: state.head - 1 }),
  "]": () => choose({ head: state.head + 1 }),
  Escape: () => choose({ under: null, key: null, token: L - 1 }),
  t: () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"),
  "?": () => byId("keys").showModal(),
};
byId("theme").addEventListener("click", KEYS.t);
byId("help").addEventListener("click", KEYS["?"]);

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("keys").open) return;
  const { tagName, type } = event.target;
  if (tagName === "SELECT" || (tagName === "INPUT" && (type !== "radio" || event.key.startsWith("Arrow"))))
    return;
  if (!(event.key in KEYS)) return;
  event.preventDefault();
  KEYS[event.key]();
});

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  readColours();
  drawThumbnails();
  drawEverything();
}

let waiting = 0;
window.addEventListener("resize", () => {
  cancelAnimationFrame(waiting);
  waiting = requestAnimationFrame(drawEverything);
});
const dark = window.matchMedia("(prefers-color-scheme: dark)");
dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
setTheme(dark.matches ? "dark" : "light");
window.page = { data, state, choose }; // for the console of the browser
document.documentElement.dataset.ready = "yes";
