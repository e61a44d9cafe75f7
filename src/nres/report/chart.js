// Draw the curves of runs with uPlot, and list the values under the pointer.

const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("data").textContent);

// Names and notes of runs may contain HTML, so this sets them as plain text only.
function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return new Float32Array(bytes.buffer);
}

const runs = data.runs.map((run) => {
  const columns = {};
  for (const [name, text] of Object.entries(run.columns)) columns[name] = unpack(text);
  return { ...run, columns, shown: true };
});
const methods = new Map(runs.map((run) => [run.method, runs.filter((other) => other.method === run.method)]));
for (const group of methods.values()) {
  // Runs of one method have the same colour, from strong to faint.
  group.forEach((run, i) => { run.alpha = 1 - (0.6 * i) / group.length; });
}

const measures = [...new Set(runs.flatMap((run) => Object.keys(run.columns)))]
  .filter((name) => !(name in data.axes))
  .sort((a, b) => b.startsWith("eval/") - a.startsWith("eval/"));
const words = (measure) => measure.replace("eval/", "").replaceAll("_", " ");
// Some systems also evaluate a "loss", which is not the one of the updates.
const label = (measure) => ({ loss: "training loss", grad_norm: "gradient norm", snr: "signal-to-noise ratio" }[measure] ?? words(measure));
const state = {
  measure: measures[0], axis: "update", smooth: 1, seeds: "each",
  // The page suggests a kind of axis for everything it can show; the check boxes overrule it.
  get logX() { return data.log.x[this.axis]; },
  get logY() { return data.log.y[this.measure]; },
};

const dark = () => document.documentElement.dataset.theme === "dark";
// Black curves are light grey in the dark theme.
const colour = (curve) => (curve.colour === "#222222" && dark() ? "#dddddd" : curve.colour);
const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);

function short(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e");
  return String(Number(value.toPrecision(4)));
}

/** Return the points of a run that the axes can show. There are fewer evaluations than updates. */
function points(run) {
  const xs = run.columns[state.axis], ys = run.columns[state.measure] ?? [];
  const finite = [...ys.keys()].filter((i) => Number.isFinite(ys[i]));
  const x = finite.map((i) => xs[i]), y = smoothed(finite.map((i) => ys[i]), state.smooth);
  const { logX, logY } = state;
  const visible = (_, i) => (!logX || x[i] > 0) && (!logY || y[i] > 0);
  return { x: x.filter(visible), y: y.filter(visible) };
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

/** Return the mean of a method's runs, their minimum and their maximum, where all runs have points. */
function band(method, group) {
  const found = group.map(points).filter(({ x }) => x.length);
  const from = Math.max(...found.map(({ x }) => x[0])), to = Math.min(...found.map(({ x }) => x.at(-1)));
  const x = found.length ? found[0].x.filter((value) => value >= from && value <= to) : [];
  const values = found.map((curve) => interpolated(curve, x));
  const over = (reduce) => x.map((_, i) => reduce(values.map((y) => y[i])));
  return {
    ...group[0], name: `${method}, mean of ${group.length} runs`, alpha: 1, x,
    y: over((all) => all.reduce((a, b) => a + b) / all.length),
    low: over((all) => Math.min(...all)), high: over((all) => Math.max(...all)),
  };
}

function interpolated({ x, y }, at) {
  let i = 0;
  return at.map((value) => {
    while (i + 2 < x.length && x[i + 1] < value) i++;
    const share = x[i + 1] > x[i] ? (value - x[i]) / (x[i + 1] - x[i]) : 0;
    return share ? y[i] + share * (y[i + 1] - y[i]) : y[i];
  });
}

function visibleCurves() {
  const each = (run) => ({ ...run, ...points(run) });
  return [...methods].flatMap(([method, group]) => {
    const shown = group.filter((run) => run.shown);
    return state.seeds === "band" && shown.length > 1 ? band(method, shown) : shown.map(each);
  });
}

/** Return an axis for uPlot. Its logarithmic scales have no ticks beyond 10^17, which losses may exceed, so
 *  a logarithmic axis here is a linear axis of exponents. */
function axis(text, log, options) {
  const values = (_, ticks) => ticks.map((value) => short(log ? 10 ** value : value));
  const line = { stroke: ink("--line"), width: 1 };
  return {
    label: text, stroke: ink("--faint"), grid: line, ticks: { ...line, size: 5 }, values, ...options,
    ...(log ? { splits: logTicks } : {}),
  };
}

/** Return the exponents to label: powers of ten if the axis spans several, otherwise round numbers. */
function logTicks(_, __, low, high, increment) {
  const found = [];
  if (high - low >= 1) {
    const every = Math.max(1, Math.round(increment)), digits = high - low > 3 ? [1] : [1, 2, 5];
    for (let e = Math.floor(low / every) * every; e <= high; e += every) {
      found.push(...digits.map((digit) => e + Math.log10(digit)));
    }
  } else {
    const rough = (10 ** high - 10 ** low) / 5, unit = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((digit) => digit * unit).find((s) => s >= rough);
    const first = Math.ceil(10 ** low / step);
    for (let i = 0; i < 6; i++) found.push(Math.log10((first + i) * step));
  }
  return found.filter((value) => value >= low && value <= high);
}

/** Bring tables to the common x that uPlot needs. Its own `join` takes seconds for 200,000 points. */
function aligned(tables) {
  const x = Float64Array.from(tables.flatMap((table) => table[0])).sort().filter((value, i, all) => value !== all[i - 1]);
  const columns = tables.flatMap(([xs, ...many]) => many.map((ys) => {
    const column = Array(x.length);
    for (let i = 0, j = 0; j < ys.length; i++) {
      while (xs[j] === x[i]) column[i] = ys[j++];
    }
    return column;
  }));
  return [x, ...columns];
}

let plot = null, curves = [], zoomed = false;

/** Draw a new chart: uPlot cannot change its scales and series later. */
function draw({ keepRange = true } = {}) {
  const before = zoomed && keepRange ? { min: plot.scales.x.min, max: plot.scales.x.max } : null;
  plot?.destroy();
  curves = visibleCurves();
  const [onX, onY] = [state.logX, state.logY].map((log) => (log ? Math.log10 : (value) => value));
  const tables = [], series = [{}], bands = [];
  for (const curve of curves) {
    const stroke = colour(curve);
    curve.series = series.length;
    series.push({
      // Browsers draw thin lines much faster, which matters for thousands of points.
      stroke, alpha: curve.alpha, width: curve.x.length > 2000 ? 1 : 1.6, dash: curve.dashed ? [6, 3] : [],
      points: curve.x.length === 1 ? { show: true } : {},
    });
    tables.push([curve.x.map(onX), curve.y.map(onY)]);
    if (curve.low) {
      bands.push({ series: [series.length + 1, series.length], fill: `${stroke}30` });
      series.push({ points: { show: false } }, { points: { show: false } });
      tables.at(-1).push(curve.low.map(onY), curve.high.map(onY));
    }
  }
  const place = byId("chart");
  plot = new uPlot({
    width: place.clientWidth, height: place.clientHeight, series, bands, legend: { show: false },
    scales: { x: { time: false }, y: { range: { min: { pad: 0.05 }, max: { pad: 0.05 } } } },
    axes: [
      axis(data.axes[state.axis], state.logX, { size: 36, space: 80 }),
      axis(label(state.measure), state.logY, { size: 60, space: 40 }),
    ],
    cursor: {
      drag: { x: true, y: true, uni: 40, dist: 5 },
      bind: { dblclick: () => showAll },
    },
    hooks: { setCursor: [showValues], setSelect: [() => setZoomed(true)] },
  }, aligned(tables), place);
  setZoomed(before !== null);
  if (zoomed) plot.setScale("x", before);
  const shown = runs.filter((run) => run.shown).length;
  place.setAttribute("aria-label",
    `${label(state.measure)} against ${data.axes[state.axis]}, ${shown} of ${runs.length} runs`);
}

const showAll = () => draw({ keepRange: false });

function setZoomed(value) {
  zoomed = value;
  byId("reset").disabled = !value;
}

function swatch(curve) {
  const line = make("span", { className: curve.dashed ? "swatch dashed" : "swatch" });
  line.style.color = colour(curve);
  line.style.opacity = curve.alpha;
  return line;
}

/** List the values of all curves at the pointer, the lowest first. */
function showValues({ cursor, data: columns, over }) {
  const tip = byId("tip"), most = 20;
  tip.hidden = cursor.left < 0 || cursor.idx === null;
  if (tip.hidden) return;
  const value = (log, position) => (log ? 10 ** position : position);
  const at = (curve, offset = 0) => value(state.logY, columns[curve.series + offset][cursor.idxs[curve.series]]);
  const rows = curves.filter((curve) => Number.isFinite(at(curve))).sort((a, b) => at(a) - at(b));
  const text = (curve) => `${short(at(curve))}  ${curve.name}`
    + (curve.low ? ` (${short(at(curve, 1))} to ${short(at(curve, 2))})` : "");
  tip.replaceChildren(
    make("div", { textContent: `${short(value(state.logX, columns[0][cursor.idx]))} ${data.axes[state.axis]}` }),
    ...rows.slice(0, most).map((curve) => make("div", {}, swatch(curve), text(curve))),
    rows.length > most ? `… and ${rows.length - most} more` : "");
  const x = over.offsetLeft + cursor.left, onLeft = cursor.left > over.clientWidth / 2;
  tip.style.left = onLeft ? "" : `${x + 12}px`;
  tip.style.right = onLeft ? `${byId("chart").clientWidth - x + 12}px` : "";
}

/** Save the chart as a picture, with a legend below it. */
function savePicture() {
  const chart = plot.ctx.canvas, ratio = chart.width / plot.width, line = 20 * ratio;
  const canvas = make("canvas", { width: chart.width, height: chart.height + line * (curves.length + 0.5) });
  const pen = canvas.getContext("2d");
  pen.fillStyle = ink("--ground");
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(chart, 0, 0);
  pen.fillStyle = ink("--text");
  pen.font = `${13 * ratio}px system-ui, sans-serif`;
  pen.textBaseline = "middle";
  pen.lineWidth = 2.5 * ratio;
  curves.forEach((curve, i) => {
    const y = chart.height + line * (i + 0.5);
    pen.strokeStyle = colour(curve);
    pen.setLineDash(curve.dashed ? [6 * ratio, 3 * ratio] : []);
    pen.globalAlpha = curve.alpha;
    pen.stroke(new Path2D(`M ${60 * ratio} ${y} h ${26 * ratio}`));
    pen.globalAlpha = 1;
    pen.fillText(curve.name, 94 * ratio, y);
  });
  canvas.toBlob((blob) => {
    const link = make("a", { href: URL.createObjectURL(blob), download: `${state.measure.replace(/\W+/g, "-")}.png` });
    link.click();
    URL.revokeObjectURL(link.href);
  });
}
