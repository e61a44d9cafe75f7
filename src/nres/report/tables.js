// Fill the page: tables, pictures and notes.

/** Fill a table whose headings sort it. A cell is a number, a text, or an object with `value` and `text`;
 *  cells without a value come last. */
function sortable(table, headings, rows) {
  let sorted = null, ascending = true;
  const valueOf = (cell) => (cell !== null && typeof cell === "object" ? cell.value : cell) ?? null;
  const fill = () => {
    const order = [...rows];
    if (sorted !== null) {
      const sign = ascending ? 1 : -1;
      order.sort((a, b) => {
        const [p, q] = [valueOf(a[sorted]), valueOf(b[sorted])];
        if (p === q) return 0;
        if (p === null) return 1;
        if (q === null) return -1;
        return sign * (typeof p === "number" && typeof q === "number" ? p - q : String(p).localeCompare(String(q), undefined, { numeric: true }));
      });
    }
    const numeric = headings.map((_, i) => rows.some((row) => typeof valueOf(row[i]) === "number"));
    const kind = (i) => (numeric[i] ? "number" : "");
    const head = make("tr", {}, ...headings.map((text, i) => {
      const button = make("button", { type: "button", textContent: text });
      button.addEventListener("click", () => {
        ascending = sorted === i ? !ascending : true;
        sorted = i;
        fill();
        table.querySelectorAll("th button")[i].focus();
      });
      const cell = make("th", { scope: "col", className: kind(i) }, button);
      if (sorted === i) cell.setAttribute("aria-sort", ascending ? "ascending" : "descending");
      return cell;
    }));
    const body = order.map((row) => make("tr", {}, ...row.map((cell, i) => {
      const shown = cell?.text ?? (typeof cell === "number" ? short(cell) : cell ?? "–");
      const extra = cell?.best ? " best" : "";
      return make("td", { className: kind(i) + extra }, shown);
    })));
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
  const values = runs.map((run) => [...(run.columns[measure] || [])].filter(Number.isFinite));
  const lowest = values.map((all) => (all.length ? all.reduce((a, b) => Math.min(a, b)) : null));
  const best = Math.min(...lowest.filter((value) => value !== null));
  // The results come first, so that they are on the screen before the settings.
  sortable(byId("runs"),
    ["run", "method", `best ${label(measure)}`, `last ${label(measure)}`, "updates", "total steps", "sequential steps",
      "seconds", "seed", "workers N", "window W", "sigma", "learning rate", "system"],
    runs.map((run, i) => [run.name, run.method,
      lowest[i] === null ? null : { value: lowest[i], text: short(lowest[i]), best: lowest[i] === best },
      values[i].at(-1) ?? null,
      ...["update", "total_steps", "sequential_steps", "seconds"].map((name) => last(run, name)),
      ...["seed", "workers", "window", "sigma", "lr"].map((name) => setting(run, name)),
      run.settings.system]));
  const longest = Math.min(26, Math.max(...runs.map((run) => run.name.length)));
  document.documentElement.style.setProperty("--name", `${longest}ch`);
  compare(byId("settings"), runs.map((run) => run.settings));
  compare(byId("environment"), runs.map(({ environment: { device, versions, git, ...times } }) => ({
    ...times, ...device, ...versions, commit: git?.commit, "uncommitted changes": git?.changed,
  })));
}

/** Show when each method first reached the level, in one table per system. */
function levels() {
  const columns = { total_steps: "total steps", sequential_steps: "sequential steps", update: "updates", seconds: "seconds" };
  const cell = (row, axis, several) => {
    const value = row.times[axis], ratio = row.ratios[axis];
    if (value === null) return { value, text: "not reached" };
    const text = make("span", { textContent: short(value) });
    if (several && ratio !== null) text.append(make("span", { className: "faint", textContent: ` (${ratio.toFixed(2)}×)` }));
    return { value, text };
  };
  for (const { system, options, sentence, reference, rows } of data.levels) {
    const several = rows.length > 1, seeds = rows.some((row) => row.runs > 1);
    if (data.levels.length > 1) {
      const own = Object.entries(options).filter(([name, value]) => data.levels.some(
        (other) => JSON.stringify(other.options[name]) !== JSON.stringify(value)));
      const more = own.map(([name, value]) => `${name} ${JSON.stringify(value)}`);
      byId("levels").append(make("h3", { textContent: [system, ...more].join(", ") }));
    }
    const explanation = make("p", { className: "hint", textContent: sentence });
    byId("levels").append(explanation);
    if (!rows.length) continue;
    explanation.append(` The table shows when the evaluations of each method first reached it${seeds ? ", as the median over runs" : ""}.`,
      several ? ` In brackets: relative to ${reference}.` : "");
    const table = make("table", { className: "level" });
    sortable(table, ["method", ...Object.values(columns), "runs that reached it"], rows.map((row) => [
      row.method, ...Object.keys(columns).map((axis) => cell(row, axis, several)),
      { value: row.reached / row.runs, text: `${row.reached} of ${row.runs}` },
    ]));
    byId("levels").append(make("div", { className: "scroll" }, table));
  }
  byId("levels-section").hidden = !data.levels.length;
}

/** Show the values that all runs share, then those that differ, with one line per run. */
function compare(place, columns) {
  const written = (value) => (value === undefined || value === null ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value));
  const names = [...new Set(columns.flatMap((column) => Object.keys(column)))];
  const values = (name) => columns.map((column) => written(column[name]));
  const differs = (name) => new Set(values(name)).size > 1;
  const known = (name) => values(name).some((text) => text !== "–");
  const line = (first, texts) => make("tr", {}, make("th", { scope: "row", textContent: first }),
    ...texts.map((text) => make("td", { textContent: text })));
  const part = (heading, table) => [
    ...(runs.length > 1 ? [make("h3", { textContent: heading })] : []), make("div", { className: "scroll" }, table)];
  const others = names.filter(differs);
  if (others.length) {
    const head = ["run", ...others].map((text) => make("th", { scope: "col", textContent: text }));
    const body = runs.map((run, i) => line(run.name, others.map((name) => written(columns[i][name]))));
    place.append(...part("Different between runs", make("table", { className: "differs" },
      make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body))));
  }
  const same = names.filter((name) => !differs(name) && known(name)).map((name) => line(name, [values(name)[0]]));
  if (same.length) place.append(...part("The same in all runs", make("table", { className: "same" }, make("tbody", {}, ...same))));
}

function extras() {
  const pictures = runs.flatMap((run) => run.pictures.map((picture) => {
    const caption = make("figcaption", { textContent: `${run.name}: ${picture.name}` });
    const shown = picture.source
      ? make("img", { src: picture.source, alt: `${picture.name} of ${run.name}` })
      : make("p", { className: "hint", textContent: "This page does not include the picture; it is in the folder of the run." });
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
byId("subtitle").textContent = data.subtitle;
byId("measure").append(...measures.map((name) => make("option", { value: name, textContent: label(name) })));
byId("axis").append(...Object.entries(data.axes).map(([value, text]) => make("option", { value, textContent: text })));
byId("seeds-label").hidden = methods.size === runs.length;
showScales();
listen();
legend();
levels();
tables();
extras();
draw();
