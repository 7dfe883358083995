// The page: a comparison of all runs, then one run at a time.

let page = JSON.parse(document.getElementById("data").textContent);

function fact(what, value, more) {
  return value === null ? null : el("div", {class: "fact"}, el("span", {class: "what"}, what), el("b", {}, value), more ? el("small", {}, more) : null);
}

const has = (path) => at(path) !== undefined && at(path) !== null;
const factOf = (what, path, how, more) => has(path) ? fact(what, figure(path, how), more) : null;

/// "12.5 K samples/s": at the median step.
function throughput(r) {
  const median = at(`runs.${r}.metrics.step_seconds.median`), batch = at(`runs.${r}.plan.batch`);
  return median > 0 && batch > 0 && !has(`runs.${r}.plan.asynchronous`) ? fact("samples per second", say.count(batch / median), "batch ÷ median step") : null;
}

function facts(r) {
  const run = `runs.${r}`, last = at(`${run}.metrics.last`);
  const skip = new Set(["epoch", "step", "run_step", "loss", "learning_rate", "seconds", "not_finite"]);
  const step = has(`${run}.step`) ? factOf("steps", `${run}.step`, "exact", at(`${run}.steps`) > 0 ? `of ${say.exact(at(`${run}.steps`))}` : null)
                                  : factOf("steps so far", `${run}.metrics.last.run_step`, "exact");
  const loss = last?.loss === null ? fact("loss", last.not_finite || "nan") : factOf(has(`${run}.validation`) ? "training loss" : "loss", `${run}.metrics.last.loss`, "value", "last logged step");
  return el("div", {class: "facts"}, step, validationFacts(r), loss,
      Object.keys(last || {}).filter((name) => !skip.has(name)).map((name) => factOf(name.replace(/_/g, " "), `${run}.metrics.last.${name}`, "value", "last logged step")),
      factOf("skipped steps", `${run}.skipped_steps`, "exact", "not finite, or spikes"),
      factOf("duration", `${run}.seconds`, "seconds"), factOf("step time", `${run}.metrics.step_seconds.median`, "seconds", "median"), throughput(r),
      factOf("predicted step time", `${run}.plan.estimate.seconds`, "seconds"),
      factOf("ranks", `${run}.plan.ranks`, "exact", at(`${run}.plan.stages`) > 1 ? `${at(`${run}.plan.stages`)} stages` : null),
      factOf("parameters", `${run}.plan.parameters`, "count"), factOf("operations per step", `${run}.plan.flops_per_step`, "count"),
      factOf("batch", `${run}.plan.batch`, "exact", at(`${run}.plan.micro_batches`) > 1 ? `${at(`${run}.plan.micro_batches`)} micro-batches` : null));
}

function failure(r) {
  const run = at(`runs.${r}`);
  if (!run.failure) return null;
  return el("div", {class: "card alarm", role: "region", "aria-label": "reason for the failure"}, el("h3", {class: "failed"}, run.cause ? run.cause.message.split("\n")[0] : "The run failed"), el("pre", {class: "words"}, run.failure.trim()));
}

function machine(r) {
  const names = {trainctl: "trainctl", host: "host", system: "system", kernel: "kernel", cpu: "CPU", cpus: "CPUs", memory_bytes: "memory", gpu_driver: "GPU driver"};
  const path = `runs.${r}.machine`, rows = [];
  for (const [field, title] of Object.entries(names))
    if (at(`${path}.${field}`)) rows.push([title, figure(`${path}.${field}`, field === "memory_bytes" ? "bytes" : field === "cpus" ? "exact" : "text")]);
  const text = at(`runs.${r}.job`);
  const job = text ? el("details", {}, el("summary", {}, "Resolved job file"), el("pre", {tabindex: "0"}, text)) : null;
  if (!rows.length && !job) return null;
  return section("machine", "Machine and job", null, el("div", {class: "grid"}, rows.length ? card(table(["", ""], rows, "Launch host")) : null, job ? card(job) : null));
}

function notes(r) {
  const all = at(`runs.${r}.plan.notes`) || [];
  return all.length ? card(all.map((note) => el("p", {class: "note"}, note))) : null;
}

function details(r) {
  const run = at(`runs.${r}`), several = page.runs.length > 1;
  const started = run.started ? ` started ${say.time(run.started)}` : "";
  const nav = [["curves", "Training"], ["quality", "Validation"], ["texts", "Texts"], ["times", "Time"], ["network", "Network"], ["moves", "Communication"], ["schedule", "Schedule"], ["memory", "Memory"], ["events", "Events"], ["machine", "Machine"]];
  const body = el("div", {}, el("div", {class: "title"}, el("h2", {}, `${run.name}, ${run.label}`), el("span", {class: `badge ${run.state}`}, run.state),
                  el("span", {class: "soft"}, `${run.ending && run.ending !== run.state ? `${run.ending},` : ""}${started}`)),
      facts(r), failure(r), notes(r), several ? null : curvesSection([r]), qualitySection(r), textsSection(r), timesSection(r), estimateCard(r), networkSection(r), moveTables(r), scheduleSection(r),
      memorySection(r), eventsSection(r), machine(r));
  document.querySelector("header nav").replaceChildren(...nav.filter(([id]) => body.querySelector(`#${id}`) || (several && id === "curves"))
      .map(([id, title]) => el("a", {href: `#${id}`}, title)));
  return body;
}

function comparison() {
  const indices = page.runs.map((_, i) => i);
  const validated = [...new Set(page.runs.flatMap((run) => Object.keys(run.validation || {})))];
  const titles = validated.flatMap((name) => [`>validation ${name.replace(/_/g, " ")}`, ">best"]);
  const rows = indices.map((r) => {
    const run = `runs.${r}`;
    return [el("span", {}, el("i", {style: `display: inline-block; width: .7rem; height: .7rem; border-radius: 2px; background: ${color(r)}; margin-right: .4rem`}), page.runs[r].label),
            page.runs[r].name, el("span", {class: page.runs[r].state}, page.runs[r].state),
            has(`${run}.plan.ranks`) ? figure(`${run}.plan.ranks`, "exact") : "", has(`${run}.metrics.last.run_step`) ? figure(`${run}.metrics.last.run_step`, "exact") : "",
            ...validated.flatMap((name) => ["last", "best"].map((which) => has(`${run}.validation.${name}.${which}`) ? figure(`${run}.validation.${name}.${which}`, "value") : "")),
            ...[["loss", "metrics.last.loss", "value"], ["step time", "metrics.step_seconds.median", "seconds"],
                ["duration", "seconds", "seconds"], ["parameters", "plan.parameters", "count"]].map(([, path, how]) => has(`${run}.${path}`) ? figure(`${run}.${path}`, how) : "")];
  });
  const differences = page.differences.length ? card(table(["field", ...page.runs.map((run) => run.label)], page.differences.map((d) => [el("code", {}, d.field), ...d.values.map((v) => v ?? el("span", {class: "soft"}, "not set"))]),
      "Fields that differ between the jobs")) : card(el("p", {}, "The jobs have identical fields."));
  return el("div", {}, section("runs", `${page.runs.length} runs`, null, card(table(["run", "job", "state", ">ranks", ">step", ...titles, validated.length ? ">training loss" : ">loss", ">step time", ">duration", ">parameters"], rows))),
            section("differences", "Differences", null, differences), page.divergence ? divergenceSection(page.divergence) : "", curvesSection(indices));
}

function themeButton() {
  const root = document.documentElement, dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const button = el("button", {id: "theme", "aria-label": "switch between light and dark theme", onclick: () => { root.dataset.theme = dark() ? "light" : "dark"; button.textContent = dark() ? "☀" : "☾"; }}, dark() ? "☀" : "☾");
  return button;
}

function build() {
  const several = page.runs.length > 1, name = several ? `${page.runs.length} runs` : `${page.runs[0].name}, ${page.runs[0].label}`;
  document.title = `${name} – trainctl`;
  document.getElementById("top").replaceChildren(el("h1", {}, name), el("nav", {"aria-label": "sections of the page"}),
      page.follow ? el("span", {id: "live", class: "badge running", role: "status"}, "following") : "", themeButton());
  document.getElementById("main").replaceChildren(...(several ? [comparison()] : []), tabs(page.runs.map((run) => run.label), details, "runs"));
  document.getElementById("foot").replaceChildren(`Written by trainctl ${page.trainctl}${page.written ? ` on ${say.time(page.written)}` : ""}. Hover over a number for its exact value.`);
}

/// For `trainctl report --serve`: redraws the page when its data have changed, unless a chart is in use.
async function follow() {
  const answer = await fetch("data").catch(() => null);
  const note = document.getElementById("live");
  note.textContent = answer ? "following" : "server stopped";
  if (!answer) return;
  const text = await answer.text();
  if (text !== follow.last && !document.querySelector(".chart:hover, .chart:focus-within")) {
    const scrolled = scrollY;
    page = JSON.parse(follow.last = text);
    build();
    scrollTo({top: scrolled, behavior: "instant"});
  }
  setTimeout(follow, 2000);
}

build();
document.documentElement.dataset.drawn = performance.now().toFixed(0);  // milliseconds
if (page.follow) follow();
