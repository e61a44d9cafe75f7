// Connect the legend and the controls with the chart.

function legend() {
  const key = (text, some, kind) => {
    const shown = some.some((run) => run.shown);
    const sample = swatch(kind === "method" ? { ...some[0], alpha: 1 } : some[0]);
    const button = make("button", { type: "button", className: `key ${kind}` }, sample, text);
    button.setAttribute("aria-pressed", String(shown));
    button.addEventListener("click", () => {
      for (const run of some) run.shown = !shown;
      const place = [...document.querySelectorAll(".key")].indexOf(button);
      legend();
      document.querySelectorAll(".key")[place].focus();
      draw();
    });
    return button;
  };
  byId("legend").replaceChildren(...[...methods].map(([method, group]) => {
    const keys = group.map((run) => key(run.name, [run], "run"));
    return make("div", { className: "group" }, key(method, group, "method"), ...keys);
  }));
}

function showScales() {
  byId("log-x").checked = state.logX;
  byId("log-y").checked = state.logY;
}

function listen() {
  const choose = (id, change, keepRange = true) => byId(id).addEventListener("change", (event) => {
    change(event.target);
    draw({ keepRange });
  });
  choose("measure", (e) => { state.measure = e.value; showScales(); });
  // A zoom range of one axis means nothing on another.
  choose("axis", (e) => { state.axis = e.value; showScales(); }, false);
  choose("log-x", (e) => { data.log.x[state.axis] = e.checked; }, false);
  choose("log-y", (e) => { data.log.y[state.measure] = e.checked; });
  choose("smooth", (e) => { state.smooth = Number(e.value); });
  choose("seeds", (e) => { state.seeds = e.value; });
  byId("reset").addEventListener("click", showAll);
  byId("picture").addEventListener("click", savePicture);
  byId("chart").addEventListener("keydown", (event) => { if (event.key === "Escape") showAll(); });
  // uPlot listens to the mouse only, so touches are passed on as mouse events. It ignores those without movement.
  for (const kind of ["down", "move", "up"]) {
    byId("chart").addEventListener(`pointer${kind}`, ({ pointerType, clientX, clientY }) => {
      if (pointerType !== "touch") return;
      plot.over.dispatchEvent(new MouseEvent(`mouse${kind}`, { clientX, clientY, movementX: 1, bubbles: true }));
    });
  }
  new ResizeObserver(([{ contentRect: { width, height } }]) => plot.setSize({ width, height })).observe(byId("chart"));
  const root = document.documentElement;
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const theme = (name) => { root.dataset.theme = name; legend(); draw(); };
  system.addEventListener("change", () => theme(system.matches ? "dark" : "light"));
  byId("theme").addEventListener("click", () => theme(dark() ? "light" : "dark"));
  let before = "light";
  window.addEventListener("beforeprint", () => { before = root.dataset.theme; theme("light"); });
  window.addEventListener("afterprint", () => theme(before));
  root.dataset.theme = system.matches ? "dark" : "light";
}
