// One layer as a picture of data flow, with the shapes of this call; a click shows the numbers.

// name: [x, y], counted in boxes
const FLOW = {
  resid_pre: [1.3, 0],
  attn_norm: [1.3, 1],
  "attn.q": [0, 2],
  "attn.k": [1.3, 2],
  "attn.v": [2.6, 2],
  "attn.q_normed": [0, 3],
  "attn.k_normed": [1.3, 3],
  "attn.q_rot": [0, 4],
  "attn.k_rot": [1.3, 4],
  "attn.scores": [0.65, 5],
  "attn.pattern": [0.65, 6],
  "attn.z": [1.3, 7],
  "attn.out": [1.3, 8],
  resid_mid: [1.3, 9],
  mlp_norm: [1.3, 10],
  "mlp.gate": [0.65, 11],
  "mlp.up": [1.95, 11],
  "mlp.act": [1.3, 12],
  "mlp.out": [1.3, 13],
  resid_post: [1.3, 14],
};
// The same in a layer with experts, and with an MLP beside them.
const MIXTURE = {
  "mlp.router": [0.77, 11],
  "mlp.experts": [0, 12],
  "mlp.expert_weights": [2, 13],
  "mlp.gate": [0, 13],
  "mlp.up": [0.97, 13],
  "mlp.act": [0.5, 14],
  "mlp.expert_out": [0.5, 15],
  "mlp.shared.gate": [2, 11],
  "mlp.shared.up": [3, 11],
  "mlp.shared.act": [2.5, 12],
  "mlp.shared.weight": [3, 14],
  "mlp.shared.out": [2.5, 15],
  "mlp.out": [1.3, 16],
  resid_post: [1.3, 17],
};
const BOX = { wide: 124, high: 34, stepX: 132, stepY: 46 };
const activations = {};
for (const [name, found] of Object.entries(data.activations))
  activations[name] = {
    ...found,
    rms: arrayOf(found.rms),
    first: arrayOf(found.first),
    gradient: found.gradient && arrayOf(found.gradient), // (layers, L), of a model that is trained
  };

/** The picture of one layer. */
function flowOf(layer) {
  const mixed = Boolean(activations["mlp.router"]?.shapes[layer]);
  const places = mixed ? { ...FLOW, ...MIXTURE } : FLOW;
  const known = Object.keys(places).filter((name) => activations[name]?.shapes[layer]);
  // a model without q_normed has no gap there
  const levels = [...new Set(known.map((name) => places[name][1]))].sort((a, b) => a - b);
  const right = Math.max(...known.map((name) => places[name][0]));
  const beside = right * BOX.stepX + BOX.wide + 53; // where the residual stream passes

  function middle(name) {
    const [x, y] = places[name];
    return { x: 4 + BOX.wide / 2 + x * BOX.stepX, y: 4 + BOX.high / 2 + levels.indexOf(y) * BOX.stepY };
  }

  /** From the bottom of one box to the top of another. */
  function arrow(from, to) {
    const [a, b] = [middle(from), middle(to)];
    const [start, end] = [a.y + BOX.high / 2, b.y - BOX.high / 2];
    return draw("path", { d: `M${a.x},${start} C${a.x},${start + 14} ${b.x},${end - 14} ${b.x},${end}` });
  }

  /** What passes by the attention, and by the MLP. */
  function stream(from, to) {
    const [a, b] = [middle(from), middle(to)];
    const [start, end] = [a.y + 5, b.y - 5];
    const edge = a.x + BOX.wide / 2;
    const turn = (x, y) => `Q${beside},${y} ${beside},${x}`;
    const down = `M${edge},${start} H${beside - 12} ${turn(start + 12, start)} V${end - 12}`;
    return draw("path", { class: "stream", d: `${down} Q${beside},${end} ${beside - 12},${end} H${edge}` });
  }

  const [width, height] = [beside + 6, 8 + levels.length * BOX.stepY];
  return draw(
    "svg",
    { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "data flow" },
    stream("resid_pre", "resid_mid"),
    stream("resid_mid", "resid_post"),
    ...known.flatMap((name) => activations[name].sources[layer].map((from) => arrow(from, name))),
    ...known.map((name) => boxOf(name, activations[name].shapes[layer].join(" × "), middle(name))),
  );
}

function boxOf(name, shape, { x, y }) {
  const box = draw("g", {
    role: "button",
    tabindex: "0",
    "aria-label": `${name}, ${shape}`,
    "data-name": name,
  });
  box.append(
    draw("rect", { x: x - BOX.wide / 2, y: y - BOX.high / 2, width: BOX.wide, height: BOX.high }),
    draw("text", { x, y: y - 2, "text-anchor": "middle" }, name),
    draw("text", { x, y: y + 12, "text-anchor": "middle", class: "faint" }, shape),
  );
  box.addEventListener("click", () => choose({ activation: name }));
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      choose({ activation: name });
    }
  });
  return box;
}

/** What tells the picture of one layer from that of another. */
const kindOf = (layer) => Object.values(activations).map(({ shapes }) => shapes[layer]);
let drawn = "";

view(["layer"], () => {
  byId("layer-title").textContent = `Layer ${state.layer}`;
  const kind = JSON.stringify(kindOf(state.layer));
  if (kind === drawn) return;
  drawn = kind;
  byId("flow").replaceChildren(flowOf(state.layer));
  if (!activations[state.activation].shapes[state.layer]) choose({ activation: "resid_post" });
});
view(["layer", "activation"], () => {
  for (const box of byId("flow").querySelectorAll("[data-name]"))
    box.classList.toggle("here", box.dataset.name === state.activation);
});
view(["layer", "token", "under", "activation"], () => {
  const at = looked();
  const { rms, first, gradient, count } = activations[state.activation];
  const row = state.layer * L + at;
  const asked = gradient?.[row]; // NaN where there is none
  const ofLoss = asked >= 0 ? `, of the loss's gradient by it ${asked.toPrecision(3)}` : "";
  const some = Array.from(first.subarray(row * count, (row + 1) * count)).filter((n) => !Number.isNaN(n));
  byId("numbers").replaceChildren(
    make(
      "div",
      {},
      make("code", {}, state.activation),
      ` of token ${at}, `,
      code(data.tokens[at], 20),
      `: root mean square ${rms[row].toPrecision(3)}${was(rms, row, (one) => one.toPrecision(3))}${ofLoss}; its first numbers `,
      make("code", { class: "wraps" }, some.map((n) => n.toPrecision(3)).join("  ")),
    ),
  );
});
