// Measurements of a run: losses and other metrics over steps, step times, where the time goes, events.

const curve = (path, name, i, more) => ({...at(path), name, color: color(i), from: path, ...more});

const curveTitles = {loss: "loss", learning_rate: "learning rate", seconds: "step time"};

/// The names of all curves of these runs, in order of appearance.
function curveNames(runs, kind) {
  return [...new Set(runs.flatMap((r) => Object.keys(at(`runs.${r}.metrics.${kind}`) || {})))];
}

/// Lines of one metric, for one or several runs: as logged, epoch means, validations.
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
    if (!several) add(r, "epochs", `mean_${name}`, "epoch mean", {dots: true});
    if (name !== "seconds") add(r, "validations", name, "validation", {dots: true, dashed: several});
  }
  return lines;
}

/// Steps at which something happened that a curve shows: restarts, the end by train.stop_when.
function marksOf(runs) {
  const marks = [];
  for (const r of runs) {
    const of = runs.length > 1 ? `${at(`runs.${r}.label`)}: ` : "";
    for (const step of at(`runs.${r}.metrics.restarted_after`) || []) marks.push({step, name: "restart", text: `${of}the ranks were restarted`});
    for (const event of at(`runs.${r}.metrics.events`) || [])
      if (event.stopped_at_step !== undefined) marks.push({step: event.stopped_at_step, name: event.reason ? "stopped early" : "stopped", text: of + (event.reason || "stopped on request")});
  }
  return marks;
}

function curvesSection(runs) {
  const names = [...new Set([...curveNames(runs, "curves"), ...curveNames(runs, "validations").filter((n) => n !== "seconds" && n !== "samples")])];
  const order = (n) => ["loss", "learning_rate", "seconds"].indexOf(n) < 0 ? 0.5 : ["loss", "learning_rate", "seconds"].indexOf(n);
  names.sort((a, b) => order(a) - order(b));
  const charts = names.map((name, i) => {
    const series = linesOf(name, runs);
    return series.length ? new Chart({title: curveTitles[name] || name.replace(/_/g, " "), series, how: name === "seconds" ? "seconds" : "value",
                                      height: i === 0 ? 290 : 210, marks: marksOf(runs), zero: name === "seconds" || name === "learning_rate"}).place : null;
  }).filter(Boolean);
  for (const name of curveNames(runs, "loads")) {
    const series = runs.map((r, i) => at(`runs.${r}.metrics.loads.${name}`) &&
        curve(`runs.${r}.metrics.loads.${name}`, runs.length > 1 ? at(`runs.${r}.label`) : "experts", runs.length > 1 ? r : i)).filter(Boolean);
    charts.push(new Chart({title: `experts: ${name.replace(/_/g, " ")}`, series, how: "value", height: 210, zero: true}).place);
  }
  if (!charts.length) return null;
  charts[0].classList.add("wide");
  return section("curves", "Training", "Drag over a chart to zoom in; double-click to show the whole run. For long runs, each pixel shows the minimum and maximum of its steps.",
                 el("div", {class: "grid"}, charts));
}

function stepTimes(r) {
  const path = `runs.${r}.metrics.step_seconds`;
  if (!(at(`${path}.count`) > 0)) return null;
  const names = {median: "median", mean: "mean", p90: "90th percentile", p99: "99th percentile", least: "fastest", most: "slowest"};
  return card(el("h3", {}, "Step time"), table(["", ">time"],
      Object.entries(names).map(([field, title]) => [title, figure(`${path}.${field}`, "seconds")])),
      el("p", {class: "note"}, "Over ", figure(`${path}.count`, "exact"), " logged steps, including data loading."));
}

const shareNames = {compute: "compute", communication: "exposed communication", waiting: "waiting for peers", idle: "idle"};

/// One bar per rank: how the time of its profiled steps is divided.
function shareBars(r) {
  const rows = at(`runs.${r}.profile.ranks`), shown = rows.slice(0, 128), place = el("div", {});
  onWidth(place, (width) => {
    const high = shown.length > 24 ? 10 : 20, left = 58, root = svg("svg", {viewBox: `0 0 ${width} ${shown.length * high + 4}`, height: shown.length * high + 4,
        role: "img", "aria-label": "breakdown of each rank's time; the numbers are in the table below"});
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

/// In a collective all ranks wait for the last one to arrive, which therefore waits least.
function stragglers(rows) {
  if (rows.length < 2) return null;
  const sorted = [...rows].sort((a, b) => a.waiting - b.waiting), last = sorted[sorted.length - 1];
  if (last.waiting - sorted[0].waiting < 0.05) return "All ranks wait for about the same time: no rank delays the others.";
  return `Rank ${sorted[0].rank} waits least (${say.percent(sorted[0].waiting)}) and rank ${last.rank} most (${say.percent(last.waiting)}): the others wait for rank ${sorted[0].rank}.`;
}

function sharesTable(r) {
  const path = `runs.${r}.profile.ranks`, rows = at(path);
  const part = (value) => value === null ? "" : say.percent(value);
  return table([">rank", ">compute", ">communication", ">waiting", ">idle", ">bytes moved", ">bytes hidden", ">time hidden"],
      rows.slice(0, 128).map((row, i) => [say.exact(row.rank), ...["compute", "communication", "waiting", "idle"].map((name) => figure(`${path}.${i}.${name}`, "percent")),
        figure(`${path}.${i}.moved_bytes`, "bytes"), part(row.moved_bytes > 0 ? row.hidden_bytes / row.moved_bytes : null),
        part(row.moving_seconds > 0 ? row.hidden_seconds / row.moving_seconds : null)]), "Communication hidden behind kernels, per rank");
}

function profileCards(r) {
  const path = `runs.${r}.profile`;
  if (!at(path)) return [];
  const parts = at(`${path}.parts`), instructions = at(`${path}.instructions`).slice(0, 12);
  return [
    card(el("h3", {}, "Time per rank"), shareBars(r), el("p", {class: "note"}, "Profiled steps: ", figure(`${path}.steps`, "text"), ", ",
         figure(`${path}.step_seconds`, "seconds"), " per step. ", stragglers(at(`${path}.ranks`)))),
    wideCard(sharesTable(r)),
    card(table(["part", ">time", ">lower bound", ">launches"], parts.map((part, i) => [part.name, figure(`${path}.parts.${i}.seconds`, "seconds"),
         part.limit_seconds > 0 ? figure(`${path}.parts.${i}.limit_seconds`, "seconds") : "", part.launches > 0 ? say.count(part.launches) : ""]),
         "Step time by part"), el("p", {class: "note"}, "Lower bound: at the rates of ", figure(`${path}.machine`, "text"), ".")),
    card(table(["instruction", ">time", ">calls", ">waited"], instructions.map((t, i) => [t.name, figure(`${path}.instructions.${i}.seconds`, "seconds"),
         figure(`${path}.instructions.${i}.calls`, "exact"), t.waited_seconds > 0 ? figure(`${path}.instructions.${i}.waited_seconds`, "seconds") : ""]),
         "Longest instructions over all ranks")),
  ];
}

function startUp(r) {
  const path = `runs.${r}.metrics.start_up`;
  if (!at(path)) return null;
  return card(table(["phase", ">time"], [...Object.keys(at(`${path}.phases`)).map((phase) => [phase, figure(`${path}.phases.${phase}`, "seconds")]),
                                        [el("b", {}, "total until the end of the first step"), figure(`${path}.seconds`, "seconds")]], "Startup time"));
}

function workers(r) {
  const path = `runs.${r}.metrics.workers`;
  if (!at(path)) return null;
  return card(table([">worker", ">steps", ">samples per second"], at(`${path}.steps`).map((_, i) => [say.exact(i), figure(`${path}.steps.${i}`, "exact"),
              figure(`${path}.samples_per_second.${i}`, "count")]), "Asynchronous workers"));
}

function timesSection(r) {
  const cards = [stepTimes(r), ...profileCards(r), startUp(r), workers(r)].filter(Boolean);
  if (!cards.length) return null;
  const hint = at(`runs.${r}.profile`) ? null : "Run with --profile to see what each rank computed, moved and waited for.";
  return section("times", "Time", hint, el("div", {class: "grid"}, cards));
}

/// The event that a line of metrics.jsonl other than a step describes.
function eventRow(event) {
  if (event.kind === "data") return [event.run_step, `data loading: ${event.workers} workers, ${event.ahead} batches ahead`, event.reason];
  if (event.kind === "skipped") return [event.run_step, `data loading: ${say.exact(event.samples)} broken samples skipped so far`, event.first];
  if (event.stopped_at_step !== undefined) return [event.stopped_at_step, "stopped", event.reason || "on request"];
  return [event.run_step || 0, event.kind || "", JSON.stringify(event)];
}

/// The texts of validation.generate: one table per prompt, one row per validation.
function textsSection(r) {
  const all = at(`runs.${r}.metrics.texts`) || [];
  if (!all.length) return null;
  const prompts = [...new Set(all.flatMap((v) => v.texts.map((text) => text.prompt)))];
  const rows = (prompt) => all.flatMap((v) => v.texts.filter((text) => text.prompt === prompt).map((text) => [say.exact(v.step), el("pre", {class: "words"}, text.text)]));
  return section("texts", "Texts", "Generated by each validation with the weights of that step.", prompts.map((prompt) => card(table([">step", "text"], rows(prompt), prompt))));
}

function eventsSection(r) {
  const rows = (at(`runs.${r}.metrics.events`) || []).map(eventRow);
  const resumed = at(`runs.${r}.plan.launch.resumed`);
  if (resumed) rows.unshift([resumed.step, "resumed", resumed.checkpoint]);
  for (const c of at(`runs.${r}.checkpoints`) || []) rows.push([c.step, `checkpoint ${c.state}, ${say.bytes(c.bytes)}`, `${c.folder}, ${c.written}`]);
  for (const restart of at(`runs.${r}.restarts`) || []) rows.push([null, `restart after ${say.seconds(restart.seconds)}`, restart.message]);
  if (!rows.length) return null;
  rows.sort((a, b) => (a[0] ?? -1) - (b[0] ?? -1));
  return section("events", "Events", "Checkpoints, restarts, and automatic changes to data loading.",
                 card(table([">step", "event", "reason or location"], rows.map(([step, ...rest]) => [step === null ? "" : say.exact(step), ...rest]))));
}
