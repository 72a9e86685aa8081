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
  span.addEventListener("click", () => pick({ token: at }, { part: "position", layer: 0, at }));
  return span;
});
byId("text").append(...spans);
byId("text").classList.toggle("ids", !data.spelled);

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
