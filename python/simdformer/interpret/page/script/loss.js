// What the loss asks for: its gradients by what heads and MLPs give, where the model is one that is trained.

function showLoss(loss) {
  const asked = {
    without: { heads: arrayOf(loss.without_heads), mlps: arrayOf(loss.without_mlps) },
    size: { heads: arrayOf(loss.head_sizes), mlps: arrayOf(loss.mlp_sizes) }, // (layers, heads), (layers)
  };
  const areSizes = () => state.asks === "size";
  const sign = (value) => (areSizes() ? "" : value < 0 ? "−" : "+");
  function said(value) {
    const size = Math.abs(value);
    return sign(value) + (size > 0 && size < 0.001 ? size.toExponential(1) : size.toPrecision(2));
  }
  const headsOf = (layer) => asked[state.asks].heads.subarray(layer * HEADS, (layer + 1) * HEADS);
  const sum = (values) => values.reduce((total, value) => total + value, 0);
  const ofAll = (values) => (areSizes() ? Math.hypot(...values) : sum(values));

  function byLayer() {
    return range(LAYERS).flatMap((layer) => {
      const same = { here: layer === state.layer, choice: { layer } };
      return [
        { name: `layer ${layer} heads`, value: ofAll(headsOf(layer)), ...same },
        { name: `layer ${layer} MLP`, value: asked[state.asks].mlps[layer], ...same },
      ];
    });
  }

  view(["asks"], () => {
    const told = {
      without: "by how much it would rise, to first order, were what a head or an MLP writes 0",
      size: "the norm of its gradient by what a head gives (attn.z) and an MLP (mlp.out)",
    };
    byId("loss-of").textContent =
      `The mean loss of the next tokens is ${loss.mean === null ? "not a number" : `${loss.mean.toFixed(3)} nats`}. Shown over the whole text: ` +
      `${told[state.asks]}. Both columns have one scale.`;
  });

  view(["asks", "layer", "head"], () => {
    const layers = byLayer();
    const ends = [...asked[state.asks].heads, ...layers.map(({ value }) => value)];
    const most = Math.max(1e-30, ...ends.map(Math.abs));
    const heads = Array.from(headsOf(state.layer), (value, head) => ({
      name: `head ${state.layer}.${head}`,
      value,
      here: head === state.head,
      choice: { head },
    }));
    byId("loss-by-layer").replaceChildren(...bars(layers, most, said, areSizes()));
    byId("loss-by-head").replaceChildren(...bars(heads, most, said, areSizes()));
  });
  radios("asks");
}
if (data.loss) showLoss(data.loss);
else byId("loss-view").remove();
