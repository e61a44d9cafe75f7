// Curves of runs on a canvas, and the legend that hides and shows them.

const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("data").textContent);

// Text of runs is only ever set as text: names and notes may hold anything.
function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return new Float32Array(bytes.buffer);
}

const runs = data.runs.map((run, index) => {
  const columns = {};
  for (const [name, text] of Object.entries(run.columns)) columns[name] = unpack(text);
  return { ...run, index, columns, shown: true, series: new Map() };
});
const methods = [...new Set(runs.map((run) => run.method))];
for (const method of methods) {
  const group = runs.filter((run) => run.method === method);
  // Seeds of a method differ in how strong their colour is.
  group.forEach((run, i) => { run.alpha = 1 - (0.6 * i) / group.length; });
}

const measures = [...new Set(runs.flatMap((run) => Object.keys(run.columns)))]
  .filter((name) => !(name in data.axes))
  .sort((a, b) => b.startsWith("eval/") - a.startsWith("eval/"));
const label = (measure) => measure.replace("eval/", "").replaceAll("_", " ");
const state = { measure: measures[0], axis: "update", logX: false, logY: false, smooth: 1, range: null };

const canvas = byId("chart");
const margin = { left: 64, right: 30, top: 10, bottom: 42 };
let view = null;
let pointer = null;
let dragFrom = null;

const dark = () => document.documentElement.dataset.theme === "dark";
// The colour of ink, which is that of the ground when it is dark.
const colour = (run) => (run.colour === "#222222" && dark() ? "#dddddd" : run.colour);
const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);

/** The points of a run that there are: evaluations are fewer than updates. */
function series(run) {
  const key = `${state.measure} ${state.axis} ${state.smooth}`;
  if (!run.series.has(key)) {
    const xs = run.columns[state.axis], ys = run.columns[state.measure] || [];
    const x = [], y = [];
    for (let i = 0; i < ys.length; i++) {
      if (Number.isFinite(ys[i])) { x.push(xs[i]); y.push(ys[i]); }
    }
    run.series.set(key, { x, y: smoothed(y, state.smooth) });
  }
  return run.series.get(key);
}

function smoothed(y, over) {
  if (over === 1) return y;
  const half = Math.floor(over / 2), sums = [0];
  for (const value of y) sums.push(sums.at(-1) + value);
  return y.map((_, i) => {
    const from = Math.max(0, i - half), to = Math.min(y.length, i + half + 1);
    return (sums[to] - sums[from]) / (to - from);
  });
}

function extent(lists, log) {
  let low = Infinity, high = -Infinity;
  for (const list of lists) {
    for (const value of list) {
      if (log && value <= 0) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  if (low > high) return log ? [1, 10] : [0, 1];
  return low === high ? (log ? [low / 2, high * 2] : [low - 1, high + 1]) : [low, high];
}

function scale([low, high], from, to, log) {
  const f = log ? Math.log10 : (v) => v;
  const a = f(low), b = f(high);
  const forward = (v) => from + ((f(v) - a) / (b - a)) * (to - from);
  const back = (p) => {
    const value = a + ((p - from) / (to - from)) * (b - a);
    return log ? 10 ** value : value;
  };
  return Object.assign(forward, { back, log, low, high });
}

function ticks({ low, high, log }, wanted) {
  const found = [];
  if (log && Math.log10(high / low) >= 1) {
    const steps = Math.log10(high / low) > 3 ? [1] : [1, 2, 5];
    for (let e = Math.floor(Math.log10(low)); e <= Math.log10(high); e++) {
      for (const m of steps) found.push(m * 10 ** e);
    }
  } else {
    const rough = (high - low) / wanted, unit = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((m) => m * unit).find((s) => s >= rough);
    // Not while it is less than the end: of huge numbers the next may be the same.
    const first = Math.ceil(low / step);
    for (let i = 0; i <= wanted + 1; i++) found.push((first + i) * step);
  }
  return found.filter((v) => v >= low && v <= high);
}

function short(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e");
  return String(Number(value.toPrecision(4)));
}

function draw() {
  const width = canvas.clientWidth, height = canvas.clientHeight, ratio = window.devicePixelRatio || 1;
  if (!width || !height) return;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const visible = runs.filter((run) => run.shown);
  const all = visible.map((run) => series(run));
  const whole = extent(all.map((s) => s.x), state.logX);
  const [left, right] = state.range || whole;
  const inside = all.map((s) => s.y.filter((_, i) => s.x[i] >= left && s.x[i] <= right));
  let [low, high] = extent(inside, state.logY);
  const room = state.logY ? (high / low) ** 0.04 : (high - low) * 0.04;
  [low, high] = state.logY ? [low / room, high * room] : [low - room, high + room];
  const x = scale([left, right], margin.left, width - margin.right, state.logX);
  const y = scale([low, high], height - margin.bottom, margin.top, state.logY);
  view = { x, y, width, height };
  frame(pen, x, y, width, height);
  pen.save();
  pen.beginPath();
  pen.rect(margin.left, margin.top, width - margin.left - margin.right, height - margin.top - margin.bottom);
  pen.clip();
  visible.forEach((run, i) => line(pen, run, all[i], x, y));
  pen.restore();
  overlay(pen, visible, all, height);
  canvas.setAttribute("aria-label",
    `${label(state.measure)} against ${data.axes[state.axis]}, ${visible.length} of ${runs.length} runs`);
  byId("reset").disabled = state.range === null;
}

function frame(pen, x, y, width, height) {
  pen.font = "12px system-ui, sans-serif";
  pen.lineWidth = 1;
  pen.strokeStyle = ink("--line");
  pen.fillStyle = ink("--faint");
  pen.textAlign = "center";
  pen.textBaseline = "top";
  for (const value of ticks(x, Math.max(2, width / 110))) {
    const at = x(value);
    stroke(pen, at, margin.top, at, height - margin.bottom);
    pen.fillText(short(value), at, height - margin.bottom + 5);
  }
  pen.fillText(data.axes[state.axis], (margin.left + width) / 2, height - 18);
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  for (const value of ticks(y, Math.max(2, height / 60))) {
    const at = y(value);
    stroke(pen, margin.left, at, width - margin.right, at);
    pen.fillText(short(value), margin.left - 6, at);
  }
}

function stroke(pen, x0, y0, x1, y1) {
  pen.beginPath();
  pen.moveTo(x0, y0);
  pen.lineTo(x1, y1);
  pen.stroke();
}

/** A line; of many points in a column of the screen the first, least, largest and last. */
function line(pen, run, { x: xs, y: ys }, x, y) {
  pen.strokeStyle = pen.fillStyle = colour(run);
  pen.globalAlpha = run.alpha;
  pen.lineWidth = 1.6;
  pen.setLineDash(run.dashed ? [6, 3] : []);
  pen.beginPath();
  let column = null, last = 0, least = 0, largest = 0, columns = 0;
  const close = () => {
    if (column !== null) for (const v of [least, largest, last]) pen.lineTo(column, v);
  };
  for (let i = 0; i < xs.length; i++) {
    if ((x.log && xs[i] <= 0) || (y.log && ys[i] <= 0)) continue;
    const at = Math.round(x(xs[i])), value = y(ys[i]);
    if (at !== column) {
      close();
      if (column === null) pen.moveTo(at, value); else pen.lineTo(at, value);
      column = at;
      columns++;
      least = largest = value;
    }
    least = Math.min(least, value);
    largest = Math.max(largest, value);
    last = value;
  }
  close();
  pen.stroke();
  pen.setLineDash([]);
  if (columns === 1) pen.fillRect(column - 3, last - 3, 6, 6);
  pen.globalAlpha = 1;
}

/** What is selected, and what is under the pointer. */
function overlay(pen, visible, all, height) {
  const tip = byId("tip");
  tip.hidden = pointer === null || dragFrom !== null;
  if (pointer === null) return;
  if (dragFrom !== null) {
    pen.globalAlpha = 0.2;
    pen.fillStyle = ink("--faint");
    pen.fillRect(Math.min(dragFrom, pointer), margin.top, Math.abs(pointer - dragFrom), height - margin.top - margin.bottom);
    pen.globalAlpha = 1;
    return;
  }
  pen.strokeStyle = ink("--faint");
  stroke(pen, pointer, margin.top, pointer, height - margin.bottom);
  const at = view.x.back(pointer);
  const rows = [];
  visible.forEach((run, i) => {
    const { x, y } = all[i];
    if (x.length) rows.push([y[nearest(x, at)], run.name]);
  });
  rows.sort((a, b) => a[0] - b[0]);
  const more = rows.length > 8 ? `\n… and ${rows.length - 8} more` : "";
  tip.textContent = `${short(at)} ${data.axes[state.axis]}\n`
    + rows.slice(0, 8).map(([value, name]) => `${short(value)}  ${name}`).join("\n") + more;
  const onLeft = pointer > view.width / 2;
  tip.style.left = onLeft ? "" : `${pointer + 12}px`;
  tip.style.right = onLeft ? `${view.width - pointer + 12}px` : "";
  tip.style.top = `${margin.top + 6}px`;
}

function nearest(sorted, value) {
  let low = 0, high = sorted.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle; else high = middle;
  }
  return value - sorted[low] < sorted[high] - value ? low : high;
}

let waiting = false;
function redraw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; draw(); });
}

function listen() {
  const where = (event) => {
    const box = canvas.getBoundingClientRect();
    return Math.min(Math.max(event.clientX - box.left, margin.left), box.width - margin.right);
  };
  const all = () => { state.range = null; redraw(); };
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    canvas.setPointerCapture(event.pointerId);
    dragFrom = pointer = where(event);
  });
  canvas.addEventListener("pointermove", (event) => { pointer = where(event); redraw(); });
  canvas.addEventListener("pointerleave", () => { if (dragFrom === null) { pointer = null; redraw(); } });
  canvas.addEventListener("pointerup", (event) => {
    const to = where(event);
    if (dragFrom !== null && Math.abs(to - dragFrom) > 5) {
      state.range = [view.x.back(Math.min(dragFrom, to)), view.x.back(Math.max(dragFrom, to))];
    }
    dragFrom = null;
    redraw();
  });
  canvas.addEventListener("pointercancel", () => { dragFrom = pointer = null; redraw(); });
  canvas.addEventListener("dblclick", all);
  canvas.addEventListener("keydown", (event) => { if (event.key === "Escape") all(); });
  byId("reset").addEventListener("click", all);
  const choose = (id, change) => byId(id).addEventListener("change", (event) => { change(event.target); redraw(); });
  choose("measure", (e) => { state.measure = e.value; });
  // A range on one axis means nothing on another.
  choose("axis", (e) => { state.axis = e.value; state.range = null; });
  choose("log-x", (e) => { state.logX = e.checked; state.range = null; });
  choose("log-y", (e) => { state.logY = e.checked; });
  choose("smooth", (e) => { state.smooth = Number(e.value); });
  new ResizeObserver(redraw).observe(canvas);
  const root = document.documentElement;
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const theme = (name) => { root.dataset.theme = name; legend(); redraw(); };
  system.addEventListener("change", () => theme(system.matches ? "dark" : "light"));
  byId("theme").addEventListener("click", () => theme(dark() ? "light" : "dark"));
  let before = "light";
  window.addEventListener("beforeprint", () => { before = root.dataset.theme; root.dataset.theme = "light"; legend(); draw(); });
  window.addEventListener("afterprint", () => theme(before));
  root.dataset.theme = system.matches ? "dark" : "light";
}

function legend() {
  const key = (text, some, kind) => {
    const shown = some.some((run) => run.shown);
    const swatch = make("span", { className: some[0].dashed ? "swatch dashed" : "swatch" });
    swatch.style.color = colour(some[0]);
    swatch.style.opacity = kind === "method" ? 1 : some[0].alpha;
    const button = make("button", { type: "button", className: `key ${kind}` }, swatch, text);
    button.setAttribute("aria-pressed", String(shown));
    button.addEventListener("click", () => {
      for (const run of some) run.shown = !shown;
      const place = [...document.querySelectorAll(".key")].indexOf(button);
      legend();
      document.querySelectorAll(".key")[place].focus();
      redraw();
    });
    return button;
  };
  byId("legend").replaceChildren(...methods.map((method) => {
    const group = runs.filter((run) => run.method === method);
    const keys = group.map((run) => key(run.name, [run], "run"));
    return make("div", { className: "group" }, key(method, group, "method"), ...keys);
  }));
}
