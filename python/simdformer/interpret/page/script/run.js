// The run: its curves, step by step, as far as it is.

const CURVES = { loss: "loss", val_loss: "validation loss", lr: "learning rate", norm: "norm" };
const [HIGH, SIDE, FOOT] = [180, 56, 20];
const short = (value) => String(Number(value.toPrecision(3)));

/** A curve in its box: values pale, their running mean above them, measurements in between as dots. */
function curve(run, name, width) {
  const { steps, values, means } = run[name];
  const dots = name === "loss" ? (run.val_loss ?? { steps: [], values: [] }) : { steps: [], values: [] };
  const all = [...values, ...dots.values];
  const [least, most] = [Math.min(...all), Math.max(...all)];
  const [first, last] = [steps[0], Math.max(run.steps, steps[0] + 1)];
  const x = (step) => SIDE + ((step - first) / (last - first)) * (width - SIDE - 8);
  const y = (value) => 10 + (1 - (value - least) / (most - least || 1)) * (HIGH - FOOT - 14);
  const points = (heights) => heights.map((value, i) => `${x(steps[i])},${y(value)}`).join(" ");
  const text = (at, anchor, ...children) =>
    draw("text", { ...at, "text-anchor": anchor, class: "faint" }, ...children);
  return draw(
    "svg",
    { width, height: HIGH, role: "img", "aria-label": `${CURVES[name]} of steps ${first} to ${run.steps}` },
    draw("polyline", { points: points(values), class: "each" }),
    draw("polyline", { points: points(means) }),
    ...dots.values.map((value, i) => draw("circle", { cx: x(dots.steps[i]), cy: y(value), r: 3.5 })),
    text({ x: SIDE - 6, y: 14 }, "end", short(most)),
    ...(most > least ? [text({ x: SIDE - 6, y: HIGH - FOOT }, "end", short(least))] : []),
    text({ x: SIDE, y: HIGH - 4 }, "start", `step ${first}`),
    text({ x: width - 8, y: HIGH - 4 }, "end", String(run.steps)),
  );
}

view(["curve"], () => {
  const { run } = data;
  byId("run-view").hidden = !run;
  if (!run) return;
  for (const input of root.querySelectorAll("input[name=curve]")) input.disabled = !run[input.value];
  const said = Object.entries(run.last).map(([name, value]) => `${CURVES[name]} ${short(value)}`);
  const dots = run.val_loss && state.curve === "loss" ? " Dots: the validation loss." : "";
  byId("run-of").textContent = `After step ${run.steps}: ${said.join(", ")}.${dots}`;
  const box = byId("run-curve");
  box.replaceChildren(...(run[state.curve] ? [curve(run, state.curve, Math.max(240, box.clientWidth))] : []));
});
radios("curve");
