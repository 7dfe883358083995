// What was measured while a run trained: losses and other numbers over steps, step times, where the time goes, events.

const curve = (path, name, i, more) => ({...at(path), name, color: color(i), from: path, ...more});

const curveTitles = {loss: "loss", learning_rate: "learning rate", seconds: "time of a step"};

/// The names of all curves of these runs, in order of appearance.
function curveNames(runs, kind) {
  return [...new Set(runs.flatMap((r) => Object.keys(at(`runs.${r}.metrics.${kind}`) || {})))];
}

/// Lines of one number, of one or several runs: as logged, means of epochs, validations.
function linesOf(name, runs) {
  const lines = [], several = runs.length > 1;
  const add = (r, kind, field, label, more) => {
    const path = `runs.${r}.metrics.${kind}.${field}`;
    if (!at(path)) return;
    const of = several ? `${at(`runs.${r}.label`)} ` : "";
    lines.push(curve(path, of + label, several ? r : lines.length, more));
  };
  for (const r of runs) {
    add(r, "curves", name, several && name !== "loss" ? "" : name === "loss" ? "training" : curveTitles[name] || name);
    if (!several) add(r, "epochs", `mean_${name}`, "mean of the epoch", {dots: true});
    if (name !== "seconds") add(r, "validations", name, "validation", {dots: true, dashed: several});
  }
  return lines;
}

function curvesSection(runs) {
  const names = [...new Set([...curveNames(runs, "curves"), ...curveNames(runs, "validations").filter((n) => n !== "seconds" && n !== "samples")])];
  const order = (n) => ["loss", "learning_rate", "seconds"].indexOf(n) < 0 ? 0.5 : ["loss", "learning_rate", "seconds"].indexOf(n);
  names.sort((a, b) => order(a) - order(b));
  const charts = names.map((name, i) => {
    const series = linesOf(name, runs);
    return series.length ? new Chart({title: curveTitles[name] || name.replace(/_/g, " "), series, how: name === "seconds" ? "seconds" : "value",
                                      height: i === 0 ? 290 : 210, zero: name === "seconds" || name === "learning_rate"}).place : null;
  }).filter(Boolean);
  if (!charts.length) return null;
  charts[0].classList.add("wide");
  return section("curves", "Training", "Drag over a chart to zoom, double-click for the whole run. On long runs each pixel shows its least and greatest value.",
                 el("div", {class: "grid"}, charts));
}

function stepTimes(r) {
  const path = `runs.${r}.metrics.step_seconds`;
  if (!(at(`${path}.count`) > 0)) return null;
  const names = {median: "median", mean: "mean", p90: "90 of 100 within", p99: "99 of 100 within", least: "fastest", most: "slowest"};
  return card(el("h3", {}, "Time of a step"), table(["", ">time"],
      Object.entries(names).map(([field, title]) => [title, figure(`${path}.${field}`, "seconds")])),
      el("p", {class: "note"}, "Of ", figure(`${path}.count`, "exact"), " logged steps, loading included."));
}

const shareNames = {compute: "compute", communication: "communication not hidden", waiting: "waiting for peers", idle: "idle"};

/// A bar a rank: the parts of its profiled steps.
function shareBars(r) {
  const rows = at(`runs.${r}.profile.ranks`), shown = rows.slice(0, 128), place = el("div", {});
  onWidth(place, (width) => {
    const high = shown.length > 24 ? 10 : 20, left = 58, root = svg("svg", {viewBox: `0 0 ${width} ${shown.length * high + 4}`, height: shown.length * high + 4,
        role: "img", "aria-label": "shares of each rank's time; the table below has the numbers"});
    shown.forEach((row, n) => {
      let x = left;
      if (high > 10 || n % 8 === 0) root.append(svg("text", {x: 0, y: n * high + high * 0.72}, `rank ${row.rank}`));
      Object.keys(shareNames).forEach((name, i) => {
        const wide = row[name] * (width - left);
        root.append(svg("rect", {x, y: n * high + 1, width: Math.max(wide, 0), height: high - 2, style: `fill: ${color(i === 3 ? 7 : i)}`},
                        svg("title", {}, `rank ${row.rank}: ${shareNames[name]} ${say.percent(row[name])}`)));
        x += wide;
      });
    });
    place.replaceChildren(root);
  });
  return el("div", {}, place, el("div", {class: "legend"}, Object.values(shareNames).map((name, i) =>
      el("span", {}, el("i", {style: `background: ${color(i === 3 ? 7 : i)}`}), name))));
}

/// In a collective all wait for the one that comes last: it waits least.
function stragglers(rows) {
  if (rows.length < 2) return null;
  const sorted = [...rows].sort((a, b) => a.waiting - b.waiting), last = sorted[sorted.length - 1];
  if (last.waiting - sorted[0].waiting < 0.05) return "All ranks wait about equally long: none holds the others up.";
  return `Rank ${sorted[0].rank} waits least (${say.percent(sorted[0].waiting)}) and rank ${last.rank} most (${say.percent(last.waiting)}): the others wait for rank ${sorted[0].rank}.`;
}

function sharesTable(r) {
  const path = `runs.${r}.profile.ranks`, rows = at(path);
  const part = (value) => value === null ? "" : say.percent(value);
  return table([">rank", ">compute", ">communication", ">waiting", ">idle", ">bytes moved", ">hidden", ">of the time"],
      rows.slice(0, 128).map((row, i) => [say.exact(row.rank), ...["compute", "communication", "waiting", "idle"].map((name) => figure(`${path}.${i}.${name}`, "percent")),
        figure(`${path}.${i}.moved_bytes`, "bytes"), part(row.moved_bytes > 0 ? row.hidden_bytes / row.moved_bytes : null),
        part(row.moving_seconds > 0 ? row.hidden_seconds / row.moving_seconds : null)]), "Communication that kernels hide, by rank");
}

function profileCards(r) {
  const path = `runs.${r}.profile`;
  if (!at(path)) return [];
  const parts = at(`${path}.parts`), instructions = at(`${path}.instructions`).slice(0, 12);
  return [
    card(el("h3", {}, "Where the time of a rank goes"), shareBars(r), el("p", {class: "note"}, "Steps ", figure(`${path}.steps`, "text"), " of the profile, ",
         figure(`${path}.step_seconds`, "seconds"), " a step. ", stragglers(at(`${path}.ranks`)))),
    wideCard(sharesTable(r)),
    card(table(["part", ">time", ">least possible", ">launches"], parts.map((part, i) => [part.name, figure(`${path}.parts.${i}.seconds`, "seconds"),
         part.limit_seconds > 0 ? figure(`${path}.parts.${i}.limit_seconds`, "seconds") : "", part.launches > 0 ? say.count(part.launches) : ""]),
         "A step by part"), el("p", {class: "note"}, "Least possible: at the rates of ", figure(`${path}.machine`, "text"), ".")),
    card(table(["instruction", ">time", ">calls", ">waited"], instructions.map((t, i) => [t.name, figure(`${path}.instructions.${i}.seconds`, "seconds"),
         figure(`${path}.instructions.${i}.calls`, "exact"), t.waited_seconds > 0 ? figure(`${path}.instructions.${i}.waited_seconds`, "seconds") : ""]),
         "Longest instructions, over all ranks")),
  ];
}

function startUp(r) {
  const path = `runs.${r}.metrics.start_up`;
  if (!at(path)) return null;
  return card(table(["start", ">time"], [...Object.keys(at(`${path}.phases`)).map((phase) => [phase, figure(`${path}.phases.${phase}`, "seconds")]),
                                        [el("b", {}, "until the first step was finished"), figure(`${path}.seconds`, "seconds")]], "Time of the start"));
}

function workers(r) {
  const path = `runs.${r}.metrics.workers`;
  if (!at(path)) return null;
  return card(table([">worker", ">steps", ">samples a second"], at(`${path}.steps`).map((_, i) => [say.exact(i), figure(`${path}.steps.${i}`, "exact"),
              figure(`${path}.samples_per_second.${i}`, "count")]), "Asynchronous workers"));
}

function timesSection(r) {
  const cards = [stepTimes(r), ...profileCards(r), startUp(r), workers(r)].filter(Boolean);
  if (!cards.length) return null;
  const hint = at(`runs.${r}.profile`) ? null : "A run with --profile also shows what each rank computed, moved and waited for.";
  return section("times", "Time", hint, el("div", {class: "grid"}, cards));
}

/// What a line of metrics.jsonl that is no step says.
function eventRow(event) {
  if (event.kind === "data") return [event.run_step, `data: ${event.workers} workers, ${event.ahead} batches ahead`, event.reason];
  if (event.kind === "skipped") return [event.run_step, `data: ${say.exact(event.samples)} broken samples skipped so far`, event.first];
  if (event.stopped_at_step !== undefined) return [event.stopped_at_step, "stopped", event.reason || "as asked"];
  return [event.run_step || 0, event.kind || "", JSON.stringify(event)];
}

function eventsSection(r) {
  const rows = (at(`runs.${r}.metrics.events`) || []).map(eventRow);
  const resumed = at(`runs.${r}.plan.launch.resumed`);
  if (resumed) rows.unshift([resumed.step, "resumed", resumed.checkpoint]);
  for (const c of at(`runs.${r}.checkpoints`) || []) rows.push([c.step, `checkpoint ${c.state}, ${say.bytes(c.bytes)}`, `${c.folder}, ${c.written}`]);
  for (const restart of at(`runs.${r}.restarts`) || []) rows.push([null, `restart after ${say.seconds(restart.seconds)}`, restart.message]);
  if (!rows.length) return null;
  rows.sort((a, b) => (a[0] ?? -1) - (b[0] ?? -1));
  return section("events", "Events", "Checkpoints, restarts, and what the run changed about its reading of data.",
                 card(table([">step", "what", "why or where"], rows.map(([step, ...rest]) => [step === null ? "" : say.exact(step), ...rest]))));
}
