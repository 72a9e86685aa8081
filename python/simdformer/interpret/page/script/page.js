// The head of the page, the keys, dark and light.

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
    if (root.activeElement !== input) input.value = state[name];
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
  t: () => setTheme(themed.dataset.theme === "dark" ? "light" : "dark"),
  "?": () => byId("keys").showModal(),
};
byId("theme").addEventListener("click", KEYS.t);
byId("help").addEventListener("click", KEYS["?"]);

const { signal } = hooks;
root.addEventListener(
  "keydown",
  (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || byId("keys").open) return;
    const { tagName, type } = event.target;
    if (tagName === "SELECT" || tagName === "TEXTAREA") return;
    if (tagName === "INPUT" && (type !== "radio" || event.key.startsWith("Arrow"))) return;
    if (!(event.key in KEYS)) return;
    event.preventDefault();
    KEYS[event.key]();
  },
  { signal },
);

function setTheme(name) {
  themed.dataset.theme = name;
  readColours();
  drawEverything();
}

// ---- what is changed, in a notebook or in a file that was saved there

const pictures = byId("pictures").querySelector("select");
pictures.addEventListener("change", () => choose({ pictures: pictures.value }));
view(["pictures"], () => {
  pictures.value = state.pictures;
  byId("pictures").hidden = !isChanged();
  byId("changes").replaceChildren(...data.changes.map(chipOf));
  if (hooks.takeBack && data.changes.length > 1) byId("changes").append(backOf(null, "take all back"));
});

function chipOf(name, at) {
  return make("li", {}, name, ...(hooks.takeBack ? [" ", backOf(at, "×", `take back: ${name}`)] : []));
}

function backOf(at, sign, name = sign) {
  const button = make("button", { type: "button", "aria-label": name, title: name }, sign);
  button.addEventListener("click", () => hooks.takeBack(at));
  return button;
}

let waiting = 0;
function drawSoon() {
  cancelAnimationFrame(waiting);
  waiting = requestAnimationFrame(drawEverything);
}
window.addEventListener("resize", drawSoon, { signal });
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const preferred = () => hooks.theme?.() ?? (dark.matches ? "dark" : "light");
dark.addEventListener("change", () => setTheme(preferred()), { signal });
setTheme(preferred());
const page = { data, state, choose, setTheme, preferred, refresh: drawEverything };
