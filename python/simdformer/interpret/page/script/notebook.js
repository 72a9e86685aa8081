// The page in a notebook: openPage in a shadow root, and around it what tells the kernel what to compute. What the
// kernel answers is in widget.py.

const ANSWER = 5000; // milliseconds that a kernel is waited for
const GONE = "The kernel does not answer: it is busy, or was restarted. After a restart, run the cell again.";

/** Dark or light, as the notebook has it; undefined where it does not say. */
function themeOfNotebook() {
  const { dataset, classList } = document.body;
  if (dataset.jpThemeLight) return dataset.jpThemeLight === "true" ? "light" : "dark";
  if (classList.contains("vscode-dark")) return "dark";
  return classList.contains("vscode-light") ? "light" : undefined;
}

function render({ model, el }) {
  // JupyterLab's own keys would be read where the pointer is in a shadow root
  const host = make("div", { class: "simdformer-explorer", "data-lm-suppress-shortcuts": "true" });
  const root = host.attachShadow({ mode: "open" });
  root.innerHTML = `<style>${STYLE}</style>${CONTROLS}`;
  el.append(host);
  const byId = (id) => root.getElementById(id);
  const view = String(Math.random());
  const ended = new AbortController();
  let page = null;
  let memory = []; // of the arrays now, and before
  let opening = new AbortController();
  let waiting = 0;

  function say(sentence) {
    byId("says").textContent = sentence;
  }

  function ask(content) {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      say(GONE);
      if (page === null) ask({ do: "open", view }); // a kernel that is busy now
    }, ANSWER);
    try {
      model.send(content);
    } catch {
      say(GONE);
    }
  }

  const clickDoes = () => root.querySelector("input[name=does]:checked").value;

  // ---- what the kernel tells

  const copy = (view) => view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength);

  function open(data, buffers) {
    opening.abort();
    opening = new AbortController();
    memory = buffers.map(copy);
    const scrolled = byId("page").scrollTop;
    const chosen = { layer: model.get("layer"), head: model.get("head") };
    const isAtEnd = page === null || page.state.token === page.data.tokens.length - 1;
    const last = data.tokens.length - 1;
    const token = page === null ? model.get("position") : isAtEnd ? last : Math.min(page.state.token, last);
    const kept = { ...page?.state, under: null, key: null, ...chosen, token };
    byId("page").innerHTML = VIEWS;
    page = openPage(root, data, ...memory, {
      kept,
      signal: opening.signal,
      theme: themeOfNotebook,
      pick: (place) => {
        if (clickDoes()) ask({ do: "toggle", edit: { ...place, value: clickDoes() } });
      },
      mayEdit: () => clickDoes() === "",
      rewrite: (at, text) => ask({ do: "rewrite", at, text }),
      append: (word) => ask({ do: "append", word }),
      lens: (at) => ask({ do: "lens", at }),
      takeBack: (at) => ask({ do: "take back", at }),
      chosen: tellChoice,
    });
    byId("page").scrollTop = scrolled;
  }

  function change({ places, words, changes }, buffers) {
    for (const [i, held] of memory.entries()) {
      const [numbers, bytes] = [new Uint8Array(held), new Uint8Array(copy(buffers[i]))];
      let from = 0;
      for (const [begin, end] of places[i]) {
        numbers.set(bytes.subarray(from, from + end - begin), begin);
        from += end - begin;
      }
    }
    page.data.words.length = words.from;
    page.data.words.push(...words.more);
    page.data.changes = changes;
    page.refresh();
  }

  function hear(content, buffers) {
    clearTimeout(waiting);
    byId("busy").hidden = content.kind !== "busy" && (content.kind !== "heard" || byId("busy").hidden);
    if (content.kind === "heard") return;
    if (content.kind === "busy") {
      Object.assign(byId("bar"), { max: content.total, value: content.done });
      byId("doing").textContent = content.what;
      return;
    }
    if (content.kind === "page" && (content.view === null || content.view === view))
      open(content.data, buffers);
    if (content.kind === "numbers" && page !== null) change(content, buffers);
    if (content.kind === "run" && page !== null) {
      page.data.run = content.run;
      page.refresh();
    }
    say(content.sentence);
    for (const [id, name] of [
      ["typed", "text"],
      ["other", "other"],
    ])
      if (root.activeElement !== byId(id)) byId(id).value = content[name];
  }

  // ---- what it is told

  let typing = 0;
  for (const [id, name, does] of [
    ["typed", "text", "write"],
    ["other", "other", "compare"],
  ])
    byId(id).addEventListener("input", () => {
      clearTimeout(typing);
      typing = setTimeout(() => ask({ do: does, [name]: byId(id).value }), 150);
    });
  byId("sample").addEventListener("click", () => {
    const [temperature, seed] = ["temperature", "seed"].map((id) => byId(id).valueAsNumber);
    ask({ do: "sample", temperature: temperature || 0, seed: Math.trunc(seed) || 0 });
  });
  byId("stop").addEventListener("click", () => ask({ do: "stop" }));
  byId("controls").addEventListener("submit", (event) => event.preventDefault());

  const TRAITS = { layer: "layer", head: "head", position: "token" };
  function tellChoice(state) {
    for (const [trait, name] of Object.entries(TRAITS))
      if (model.get(trait) !== state[name]) model.set(trait, state[name]);
    model.save_changes();
  }
  for (const [trait, name] of Object.entries(TRAITS))
    model.on(`change:${trait}`, () => page?.choose({ [name]: model.get(trait) }));

  model.on("msg:custom", hear);
  // the kernel was restarted, or is back
  model.on("comm_live_update", () => ask({ do: "open", view }));
  const themes = new MutationObserver(() => page?.setTheme(page.preferred()));
  themes.observe(document.body, { attributeFilter: ["data-jp-theme-light", "class"] });
  ended.signal.addEventListener("abort", () => {
    clearTimeout(waiting);
    opening.abort();
    themes.disconnect();
  });
  ask({ do: "open", view });
  return () => ended.abort();
}

export default { render };
