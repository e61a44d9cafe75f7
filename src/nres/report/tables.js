// Tables, pictures and notes; the last lines fill the page.

/** A table whose headings sort it; unknown values come last. */
function sortable(table, headings, rows) {
  let sorted = null, ascending = true;
  const fill = () => {
    const order = [...rows];
    if (sorted !== null) {
      const sign = ascending ? 1 : -1;
      order.sort((a, b) => {
        const [p, q] = [a[sorted], b[sorted]];
        if (p === q) return 0;
        if (p === null || p === undefined) return 1;
        if (q === null || q === undefined) return -1;
        return sign * (typeof p === "number" && typeof q === "number" ? p - q : String(p).localeCompare(String(q), undefined, { numeric: true }));
      });
    }
    const head = make("tr", {}, ...headings.map((text, i) => {
      const button = make("button", { type: "button", textContent: text });
      button.addEventListener("click", () => {
        ascending = sorted === i ? !ascending : true;
        sorted = i;
        fill();
        table.querySelectorAll("th button")[i].focus();
      });
      const cell = make("th", { scope: "col" }, button);
      if (sorted === i) cell.setAttribute("aria-sort", ascending ? "ascending" : "descending");
      return cell;
    }));
    const body = order.map((row) => make("tr", {}, ...row.map((value) => (
      typeof value === "number"
        ? make("td", { className: "number", textContent: short(value) })
        : make("td", { textContent: value ?? "–" })))));
    table.replaceChildren(make("thead", {}, head), make("tbody", {}, ...body));
  };
  fill();
}

function tables() {
  const measure = measures[0];
  const last = (run, column) => run.columns[column].at(-1);
  const setting = (run, name) => {
    const value = run.settings[name] ?? null;
    return value === null || Number.isNaN(Number(value)) ? value : Number(value);
  };
  sortable(byId("runs"),
    ["run", "method", "system", "N", "W", "σ", "rate", "seed", "updates", "sequential steps", "total steps",
      "seconds", `${label(measure)}, last`, "best"],
    runs.map((run) => {
      const values = [...(run.columns[measure] || [])].filter(Number.isFinite);
      return [run.name, run.method, run.settings.system,
        ...["workers", "window", "sigma", "lr", "seed"].map((name) => setting(run, name)),
        ...["update", "sequential_steps", "total_steps", "seconds"].map((name) => last(run, name)),
        values.at(-1) ?? null, values.length ? values.reduce((a, b) => Math.min(a, b)) : null];
    }));
  const words = (value) => (value === undefined || value === null ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value));
  compare(byId("settings"), runs.map((run) => run.settings), words);
  compare(byId("facts"), runs.map((run) => ({
    begun: run.facts.begun, ...run.facts.device, ...run.facts.versions,
    commit: run.facts.git?.commit, "changed since": run.facts.git?.changed,
  })), words);
}

/** Values that all runs share, once; then those that differ, with a line per run. */
function compare(place, columns, words) {
  const names = [...new Set(columns.flatMap((column) => Object.keys(column)))];
  const values = (name) => columns.map((column) => words(column[name]));
  const differs = (name) => new Set(values(name)).size > 1;
  const line = (first, texts) => make("tr", {}, make("th", { scope: "row", textContent: first }),
    ...texts.map((text) => make("td", { textContent: text })));
  const same = names.filter((name) => !differs(name)).map((name) => line(name, [values(name)[0]]));
  const parts = [make("table", { className: "same" }, make("tbody", {}, ...same))];
  const others = names.filter(differs);
  if (others.length) {
    const head = ["run", ...others].map((text) => make("th", { scope: "col", textContent: text }));
    const body = runs.map((run, i) => line(run.name, others.map((name) => words(columns[i][name]))));
    parts.push(make("table", { className: "differs" },
      make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body)));
  }
  place.replaceChildren(...parts);
}

function extras() {
  const pictures = runs.flatMap((run) => run.pictures.map((picture) => {
    const caption = make("figcaption", { textContent: `${run.name}: ${picture.name}` });
    const shown = picture.source
      ? make("img", { src: picture.source, alt: `${picture.name} of ${run.name}` })
      : make("p", { className: "hint", textContent: "too large for this page: it lies in the folder of the run" });
    return make("figure", {}, shown, caption);
  }));
  byId("pictures").append(...pictures);
  byId("pictures-section").hidden = !pictures.length;
  const noted = runs.filter((run) => run.notes);
  for (const run of noted) {
    byId("notes").append(make("dt", { textContent: run.name }), make("dd", { textContent: run.notes }));
  }
  byId("notes-section").hidden = !noted.length;
}

document.title = byId("title").textContent = data.title;
byId("measure").append(...measures.map((name) => make("option", { value: name, textContent: label(name) + (name === "loss" ? " while training" : "") })));
byId("axis").append(...Object.entries(data.axes).map(([value, text]) => make("option", { value, textContent: text })));
// Curves that fall by orders of magnitude need a logarithmic axis.
const values = runs.flatMap((run) => points(run).y);
const least = values.reduce((a, b) => Math.min(a, b), Infinity), largest = values.reduce((a, b) => Math.max(a, b), 0);
state.logY = byId("log-y").checked = least > 0 && largest / least > 20;
byId("seeds-label").hidden = methods.size === runs.length;
listen();
legend();
tables();
extras();
draw();
