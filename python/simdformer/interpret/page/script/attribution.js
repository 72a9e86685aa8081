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
const byHead = (layer, head) => written.heads[(layer * HEADS + head) * L + looked()];
const signed = (value) => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(2);

/** What is written behind the token that is looked at, layer by layer. */
function byLayer() {
  const at = looked();
  const layers = range(LAYERS).flatMap((layer) => {
    const heads = range(HEADS).reduce((sum, head) => sum + byHead(layer, head), 0);
    const same = { here: layer === state.layer, choice: { layer } };
    return [
      { name: `layer ${layer} heads`, value: heads + written.biases[layer * L + at], ...same },
      { name: `layer ${layer} MLP`, value: written.mlps[layer * L + at], ...same },
    ];
  });
  const rare = (part) => (part.value === 0 ? [] : [part]); // in models with LayerNorm
  return [
    { name: "embedding", value: written.embed[at] },
    ...rare({ name: "position", value: written.pos_embed[at] }),
    ...layers,
    ...rare({ name: "bias of the final norm", value: written.constant[at] }),
  ];
}

/** Both columns have one scale, whichever layer is chosen: that of the longest bar of all. */
function longest() {
  const heads = range(LAYERS).flatMap((layer) => range(HEADS).map((head) => byHead(layer, head)));
  return Math.max(1e-9, ...[...byLayer().map(({ value }) => value), ...heads].map(Math.abs));
}

function axis(most) {
  const ends = make("i", {}, make("s", {}, signed(-most)), make("s", {}, "0"), make("s", {}, signed(most)));
  const row = make("div", { class: "axis", "aria-hidden": "true" });
  row.append(make("span"), ends);
  return row;
}

function bars(parts) {
  const most = longest();
  return [...parts.map((part) => barOf(part, most)), axis(most)];
}

function barOf({ name, value, here, choice }, most) {
  const wide = (50 * Math.abs(value)) / most;
  const line = make("i", {
    "--from": `${value < 0 ? 50 - wide : 50}%`,
    "--wide": `${wide}%`,
    "--colour": value < 0 ? "var(--warm)" : "var(--mark)",
  });
  const bar = make("button", { type: "button", class: here ? "bar here" : "bar" });
  bar.append(make("span", {}, name), line, make("b", {}, signed(value)));
  if (choice) bar.addEventListener("click", () => choose(choice));
  return bar;
}

view(["token", "under"], () => {
  const { target, against } = data.attribution;
  const at = looked();
  const said = label(target ?? word(nextWords[at * NEXT]), 20);
  const other = against === null ? "" : ` against “${label(against, 20)}”`;
  byId("attribution-of").textContent =
    `Behind token ${at}, ${label(data.tokens[at], 20)}: what each part writes into the logit of ` +
    `“${said}”${other}; in all ${written.difference[at].toFixed(2)}. Both columns have one scale.`;
});

view(["token", "under", "layer"], () => byId("by-layer").replaceChildren(...bars(byLayer())));

view(["token", "under", "layer", "head"], () => {
  const heads = range(HEADS).map((head) => ({
    name: `head ${state.layer}.${head}`,
    value: byHead(state.layer, head),
    here: head === state.head,
    choice: { head },
  }));
  byId("by-head").replaceChildren(...bars(heads));
});
