// The text: each token coloured by what it is given, or by how well it was predicted.

const TURNING = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/; // the direction of what follows, too
const spans = data.tokens.map((text, at) => {
  const span = make(
    "span",
    { role: "option", id: `token-${at}`, title: `${at}: ${label(text, 40)}` },
    text || "∅",
  );
  span.classList.toggle("turns", TURNING.test(text));
  span.addEventListener("pointerenter", () => choose({ under: at }));
  span.addEventListener("pointerleave", () => choose({ under: null }));
  span.addEventListener("click", () => {
    const wasChosen = at === state.token;
    pick({ token: at }, { part: "position", layer: 0, at });
    if (wasChosen && hooks.mayEdit?.()) edit(at);
  });
  return span;
});
byId("text").append(...spans);
byId("text").classList.toggle("ids", !data.spelled);

/** A token becomes a field to type in: Enter writes it into the text, Escape or leaving takes it back. */
function edit(at) {
  const [span, given] = [spans[at], data.tokens[at]];
  const field = make("textarea", { rows: 1, spellcheck: "false", "aria-label": `token ${at}` }, given);
  const fit = () => field.style.setProperty("width", `${Array.from(field.value).length + 2}ch`);
  let isOpen = true;
  function close(isMeant) {
    if (!isOpen) return;
    isOpen = false;
    const hadFocus = root.activeElement === field;
    span.textContent = given || "∅";
    if (hadFocus) byId("text").focus();
    if (isMeant && field.value !== given) hooks.rewrite(at, field.value);
  }
  field.addEventListener("input", fit);
  field.addEventListener("blur", () => close(false));
  field.addEventListener("click", (event) => event.stopPropagation());
  field.addEventListener("keydown", (event) => {
    event.stopPropagation();
    const isEnd = (event.key === "Enter" && !event.shiftKey && !event.isComposing) || event.key === "Escape";
    if (!isEnd) return;
    event.preventDefault();
    close(event.key === "Enter");
  });
  fit();
  span.replaceChildren(field);
  field.select();
}
byId("text").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !hooks.rewrite) return;
  event.preventDefault();
  edit(state.token);
});

const loss = (share) => -Math.log(share);

function tokenShade(at) {
  if (state.colour === "attends") return share(state.layer, state.head, looked(), at);
  if (Number.isNaN(actual[at])) return 0;
  const value = state.colour === "loss" ? shown(actual, at, loss) / 10 : shown(actual, at);
  return value * Math.abs(value); // a shade is the square root
}

view(["token", "under", "layer", "head", "colour", "pictures"], () => {
  spans.forEach((span, at) => {
    const colour = shade(tokenShade(at));
    span.style.backgroundColor = css(colour);
    span.style.color = onTop(colour);
    span.classList.toggle("here", at === state.token);
    span.setAttribute("aria-selected", String(at === state.token));
  });
  byId("text").setAttribute("aria-activedescendant", `token-${state.token}`);
});

view(["token", "under"], () => {
  const at = looked();
  const own = Number.isNaN(actual[at])
    ? "the first token, which nothing predicts"
    : `the token before gave it ${percent(actual[at])}, a loss of ${loss(actual[at]).toFixed(2)}` +
      was(actual, at, (share) => `${percent(share)}, ${loss(share).toFixed(2)}`);
  byId("next").replaceChildren(
    make("div", {}, `token ${at} `, code(data.tokens[at], 30), `: ${own}`),
    make("div", {}, "what the model says comes next:"),
    listings(nextWords, nextShares, range(NEXT, at * NEXT), at === L - 1 ? hooks.append : undefined),
  );
});

radios("colour");
