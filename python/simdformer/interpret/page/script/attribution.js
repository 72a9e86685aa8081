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
const byHead = (layer, head) => written.heads[(layer * HEADS + head) * L + state.token];

function bars(parts) {
  const most = Math.max(1e-9, ...parts.map(({ value }) => Math.abs(value)));
  return parts.map(({ name, value, here, choice }) => {
    const wide = (50 * Math.abs(value)) / most;
    const line = make("i", {
      "--from": `${value < 0 ? 50 - wide : 50}%`,
      "--wide": `${wide}%`,
      "--colour": value < 0 ? "var(--warm)" : "var(--mark)",
    });
    const number = (value < 0 ? "−" : "+") + Math.abs(value).toFixed(2);
    const bar = make("button", { type: "button", class: here ? "bar here" : "bar" });
    bar.append(make("span", {}, name), line, make("b", {}, number));
    if (choice) bar.addEventListener("click", () => choose(choice));
    return bar;
  });
}

view(["token"], () => {
  const { target, against } = data.attribution;
  const said = label(target ?? word(nextWords[state.token * NEXT]), 20);
  const other = against === null ? "" : ` against “${label(against, 20)}”`;
  byId("attribution-of").textContent =
    `Behind token ${state.token}, ${label(data.tokens[state.token], 20)}: what each part writes into the logit of ` +
    `“${said}”${other}; in all ${written.difference[state.token].toFixed(2)}.`;
});

view(["token", "layer"], () => {
  const layers = range(LAYERS).flatMap((layer) => {
    const heads = range(HEADS).reduce((sum, head) => sum + byHead(layer, head), 0);
    const at = layer * L + state.token;
    const same = { here: layer === state.layer, choice: { layer } };
    return [
      { name: `layer ${layer} heads`, value: heads + written.biases[at], ...same },
      { name: `layer ${layer} MLP`, value: written.mlps[at], ...same },
    ];
  });
  const position = { name: "position", value: written.pos_embed[state.token] };
  const bias = { name: "bias of the final norm", value: written.constant[state.token] };
  const rare = (part) => (part.value === 0 ? [] : [part]); // in models with LayerNorm
  byId("by-layer").replaceChildren(
    ...bars([
      { name: "embedding", value: written.embed[state.token] },
      ...rare(position),
      ...layers,
      ...rare(bias),
    ]),
  );
});

view(["token", "layer", "head"], () => {
  const heads = range(HEADS).map((head) => ({
    name: `head ${state.layer}.${head}`,
    value: byHead(state.layer, head),
    here: head === state.head,
    choice: { head },
  }));
  byId("by-head").replaceChildren(...bars(heads));
});
