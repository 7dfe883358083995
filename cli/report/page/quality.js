// The quality of the answers: the validations of a run, and its newest evaluation with the confusion matrix and the worst
// samples.

const metricTitle = (name) => ({auc: "AUC", mae: "MAE", rmse: "RMSE", r2: "R2", f1: "mean F1"})[name] || name.replace(/_/g, " ");

/// The metric that represents all: the first one that is not the loss.
function mainMetric(validation) {
  const names = Object.keys(validation || {});
  return names.find((name) => name !== "loss") || names[0];
}

function validationFacts(r) {
  const path = `runs.${r}.validation`;
  return Object.keys(at(path) || {}).map((name) => factOf(`validation ${name.replace(/_/g, " ")}`, `${path}.${name}.last`, "value",
      at(`${path}.${name}.best`) === at(`${path}.${name}.last`) ? "the best so far"
          : `best ${say.value(at(`${path}.${name}.best`))} at step ${say.exact(at(`${path}.${name}.best_step`))}`));
}

/// Cells from light to dark with their share of the label's samples.
function confusionMatrix(r) {
  const path = `runs.${r}.evaluation`, rows = at(`${path}.confusion`);
  if (!rows || rows.length > 30) return null;
  const classes = at(`${path}.classes`).map((c) => c.name), names = rows.length === classes.length ? classes : ["no", "yes"];
  const cell = (count, sum, i, j) => {
    const share = sum > 0 ? count / sum : 0;
    return el("td", {class: "count", style: `background: color-mix(in srgb, var(${i === j ? "--c0" : "--c1"}) ${Math.round(70 * share)}%, transparent)`,
                     title: `label ${names[i]}, answer ${names[j]}: ${say.exact(count)} of ${say.exact(sum)} (${say.percent(share)})`,
                     "data-from": `${path}.confusion.${i}.${j}`, "data-how": "exact"}, count ? say.exact(count) : "0");
  };
  return card(el("h3", {}, "Confusion matrix"), el("p", {class: "note"}, "A row per label, a column per answer."),
      el("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": "confusion matrix"}, el("table", {class: "confusion"},
          el("thead", {}, el("tr", {}, el("th", {}, "label"), names.map((name) => el("th", {scope: "col"}, name)))),
          el("tbody", {}, rows.map((row, i) => {
            const sum = row.reduce((a, b) => a + b, 0);
            return el("tr", {}, el("th", {scope: "row"}, names[i]), row.map((count, j) => cell(count, sum, i, j)));
          })))));
}

function classTable(r) {
  const path = `runs.${r}.evaluation.classes`, classes = at(path);
  if (!classes) return null;
  const shown = classes.map((_, i) => i).sort((a, b) => classes.length > 30 ? classes[a].f1 - classes[b].f1 : a - b).slice(0, 30);
  return card(table(["class", ">samples", ">precision", ">recall", ">F1"], shown.map((i) => [classes[i].name, figure(`${path}.${i}.samples`, "exact"),
      ...["precision", "recall", "f1"].map((field) => figure(`${path}.${i}.${field}`, "value"))]),
      classes.length > 30 ? `The 30 of ${classes.length} classes with the lowest F1` : "Classes"));
}

function worstSamples(r) {
  const path = `runs.${r}.evaluation.worst`, worst = at(path);
  if (!worst || !worst.length) return null;
  const isError = worst[0].error !== undefined;
  return wideCard(el("h3", {}, "Worst samples"), el("p", {class: "note"}, isError ? "Label → answer, with the error; the largest first." : "Label → answer, with the probability of the label; the lowest first."),
      el("div", {class: "samples"}, worst.map((sample, i) => el("figure", {}, sample.image ? el("img", {src: sample.image, alt: sample.file, loading: "lazy"}) : null,
          el("figcaption", {}, el("b", {}, `${sample.label} → ${sample.answer}`), " ", figure(`${path}.${i}.${isError ? "error" : "probability"}`, isError ? "value" : "percent"),
             el("small", {title: sample.file}, sample.line === undefined ? sample.file.split("/").pop() : `${sample.file.split("/").pop()}:${sample.line}`))))));
}

function qualitySection(r) {
  const path = `runs.${r}.evaluation`, evaluation = at(path);
  if (!evaluation) return null;
  const skip = new Set(["checkpoint", "step", "samples", "seconds", "classes", "confusion", "worst", "number"]);
  const values = Object.keys(evaluation).filter((name) => !skip.has(name) && typeof evaluation[name] === "number");
  return section("quality", "Validation", `Evaluation ${evaluation.number}, of the weights after step ${say.exact(evaluation.step)}, over ${say.exact(evaluation.samples)} samples.`,
      el("div", {class: "grid"}, card(table(["", ">value"], values.map((name) => [metricTitle(name), figure(`${path}.${name}`, "value")]), "Measures")),
         classTable(r), confusionMatrix(r), worstSamples(r)));
}
