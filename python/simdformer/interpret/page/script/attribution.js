// Who writes it: what each part adds to the logit of the word, as bars.

const written = {
  difference: arrayOf(data.attribution.difference), // (L)
  embed: arrayOf(data.attribution.embed), // (L)
  pos_embed: arrayOf(data.attribution.pos_embed), // (L)
  heads: arrayOf(data.attribution.heads), // (layers, heads, L)
  mlps: arrayOf(data.attribution.mlps), // (layers, L)
  biases: arrayOf(data.attribution.biases), // (layers, L)
  constant: arrayOf(data.attribution.constant), // (L)
};
/** What the parts at these places of an array write together, now and before. */
function part(array, ...places) {
  const sum = (numbers) => places.reduce((total, at) => total + numbers[at], 0);
  return { value: sum(array), earlier: sum(asBefore(array)) };
}
const together = (a, b) => ({ value: a.value + b.value, earlier: a.earlier + b.earlier });
const headAt = (layer, head) => (layer * HEADS + head) * L + looked();
const byHead = (layer, head) => part(written.heads, headAt(layer, head));
const signed = (value) => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(2);

/** What is written behind the token that is looked at, layer by layer. */
function byLayer() {
  const at = looked();
  const layers = range(LAYERS).flatMap((layer) => {
    const heads = part(written.heads, ...range(HEADS).map((head) => headAt(layer, head)));
    const same = { here: layer === state.layer, choice: { layer } };
    const mlp = { ...same, place: { part: "mlp", layer } };
    return [
      { name: `layer ${layer} heads`, ...together(heads, part(written.biases, layer * L + at)), ...same },
      { name: `layer ${layer} MLP`, ...part(written.mlps, layer * L + at), ...mlp },
    ];
  });
  const rare = (one) => (one.value === 0 && one.earlier === 0 ? [] : [one]); // in models with LayerNorm
  return [
    { name: "embedding", ...part(written.embed, at) },
    ...rare({ name: "position", ...part(written.pos_embed, at) }),
    ...layers,
    ...rare({ name: "bias of the final norm", ...part(written.constant, at) }),
  ];
}

/** Both columns have one scale, whichever layer is chosen: that of the longest bar of all. */
function longest() {
  const heads = range(LAYERS).flatMap((layer) => range(HEADS).map((head) => byHead(layer, head)));
  const ends = [...byLayer(), ...heads].flatMap(({ value, earlier }) => [value, earlier]);
  return Math.max(1e-9, ...ends.map(Math.abs));
}

/** From −most to most, or of sizes, which are never below 0, from 0 to most. */
function axis(most, said, areSizes) {
  const marks = [...(areSizes ? [] : [said(-most)]), "0", said(most)];
  const ends = make("i", {}, ...marks.map((mark) => make("s", {}, mark)));
  const row = make("div", { class: "axis", "aria-hidden": "true" });
  row.append(make("span"), ends);
  return row;
}

/** The longest bar is `most`; `said` is how a number is written. */
function bars(parts, most = longest(), said = signed, areSizes = false) {
  return [...parts.map((part) => barOf(part, most, said, areSizes)), axis(most, said, areSizes)];
}

function barOf({ name, value, earlier, here, choice, place }, most, said, areSizes) {
  const zero = areSizes ? 0 : 50;
  const wide = ((100 - zero) * Math.abs(value)) / most;
  const line = make("i", {
    "--zero": `${zero}%`,
    "--from": `${value < 0 ? zero - wide : zero}%`,
    "--wide": `${wide}%`,
    "--colour": value < 0 ? "var(--warm)" : "var(--mark)",
    "--earlier": `${zero + ((100 - zero) * earlier) / most}%`,
  });
  const bar = make("button", { type: "button", class: here ? "bar here" : "bar" });
  bar.append(make("span", {}, name), line, make("b", {}, said(value)));
  if (isChanged()) {
    bar.lastChild.append(make("small", {}, ` ${said(earlier)}`));
    line.classList.add("changed");
    bar.title = `${name}: now ${said(value)}, before ${said(earlier)}`;
  }
  if (choice) bar.addEventListener("click", () => (place ? pick(choice, place) : choose(choice)));
  return bar;
}

view(["token", "under"], () => {
  const { target, against } = data.attribution;
  const at = looked();
  const said = label(target ?? followed(at), 20);
  const other = against === null ? "" : ` against “${label(against, 20)}”`;
  byId("attribution-of").textContent =
    `Behind token ${at}, ${label(data.tokens[at], 20)}: what each part writes into the logit of ` +
    `“${said}”${other}; in all ${written.difference[at].toFixed(2)}` +
    `${was(written.difference, at, (all) => all.toFixed(2))}. Both columns have one scale.`;
});

view(["token", "under", "layer"], () => byId("by-layer").replaceChildren(...bars(byLayer())));

view(["token", "under", "layer", "head"], () => {
  const heads = range(HEADS).map((head) => ({
    name: `head ${state.layer}.${head}`,
    ...byHead(state.layer, head),
    here: head === state.head,
    choice: { head },
    place: { part: "head", layer: state.layer, at: head },
  }));
  byId("by-head").replaceChildren(...bars(heads));
});
