// The plan of a step: the schedule, memory over the step, communication; and the schedule as measured.

function moveTables(r) {
  const plan = at(`runs.${r}.plan`), moves = at(`runs.${r}.folds.moves`);
  if (!moves) return null;
  const path = `runs.${r}.plan.communication`, most = Math.max(...plan.communication.map((c) => c.bytes), 1);
  const bar = (bytes) => el("div", {style: `width: ${Math.max(2, 100 * bytes / most)}%; height: .6rem; border-radius: 3px; background: ${color(0)}`, "aria-hidden": "true"});
  const sums = plan.communication.length ? table(["purpose", "kind", ">group size", ">calls", ">bytes", ""], plan.communication.map((row, i) =>
      [row.purpose, row.kind, say.exact(row.group_size), figure(`${path}.${i}.calls`, "exact"), figure(`${path}.${i}.bytes`, "bytes"), el("div", {style: "min-width: 7rem"}, bar(row.bytes))]),
      "Per step, all ranks") : el("p", {}, "No data moves between ranks.");
  const each = moves.length ? el("details", {open: moves.length < 30 ? "" : undefined}, el("summary", {}, "Redistributions and transfers per micro-batch"),
      table(["stage", "pass", "kind", "tensor", ">times", ">bytes", "groups"], moves)) : null;
  return section("moves", "Communication between ranks", null, el("div", {class: "grid"}, card(sums), each ? wideCard(each) : null));
}

const taskColor = {F: 0, B: 1, W: 3};

/// [row, task, row, task]: each pass of a micro-batch that sends its result to the stage where the next one begins. Rows have
/// `stage`; "F2.1" is the forward pass of micro-batch 2 in chunk 1, "F2" in the only chunk.
function sendsBetween(rows, stages, chunks) {
  const places = new Map(), links = [], name = (kind, micro, chunk) => kind + micro + (chunks > 1 ? `.${chunk}` : "");
  rows.forEach((row, r) => row.tasks.forEach((task, t) => places.set(`${row.stage} ${task}`, [r, t])));
  rows.forEach((row, r) => row.tasks.forEach((task, t) => {
    const [micro, chunk = 0] = task.slice(1).split(".").map(Number), by = {F: 1, B: -1}[task[0]];
    if (by === undefined) return;
    const next = chunk * stages + row.stage + by, to = places.get(`${next % stages} ${name(task[0], micro, Math.floor(next / stages))}`);
    if (stages > 1 && next >= 0 && next < stages * (chunks ?? 1) && to) links.push([r, t, ...to]);
  }));
  return links;
}

/// rows: [{label, tasks, starts, ends}]. how: words for a time. links: of sendsBetween, drawn unless they are too many to see.
function gantt(rows, words, how, links = []) {
  const end = Math.max(...rows.flatMap((row) => row.ends), 1e-12), place = el("div", {}), high = rows.length > 16 ? 16 : 26, left = 64;
  onWidth(place, (width) => {
    const toX = (t) => left + t / end * (width - left - 2);
    const root = svg("svg", {viewBox: `0 0 ${width} ${rows.length * high + 22}`, height: rows.length * high + 22, role: "img", "aria-label": words});
    rows.forEach((row, n) => {
      root.append(svg("text", {x: 0, y: n * high + high * 0.65}, row.label));
      root.append(svg("rect", {x: left, y: n * high + 2, width: width - left - 2, height: high - 4, style: "fill: var(--shade)"}));
      row.tasks.forEach((task, i) => {
        const x = toX(row.starts[i]), wide = Math.max(toX(row.ends[i]) - x, 0.7);
        root.append(svg("rect", {x, y: n * high + 2, width: Math.max(wide - (wide > 3 ? 1 : 0), 0.7), height: high - 4, rx: wide > 6 ? 3 : 0,
                                 style: `fill: ${color(taskColor[task[0]] ?? 4)}`, opacity: Number(task.slice(1).split(".")[0]) % 2 ? 0.72 : 1},
                        svg("title", {}, `${row.label} ${task}: ${how(row.starts[i])} to ${how(row.ends[i])}`)));
        if (wide > 20 && high > 16) root.append(svg("text", {x: x + wide / 2, y: n * high + high * 0.66, "text-anchor": "middle", style: "fill: var(--card); font-weight: 600; pointer-events: none"}, task));
      });
    });
    for (const [a, i, b, j] of links.length <= 1000 ? links : []) {
      const down = b > a, y = (row, isLower) => row * high + (isLower ? high - 2 : 2), sender = rows[a], receiver = rows[b];
      root.append(svg("line", {class: "send", x1: toX(sender.ends[i]), y1: y(a, down), x2: toX(receiver.starts[j]), y2: y(b, !down)},
                      svg("title", {}, `send: ${sender.label} ${sender.tasks[i]} at ${how(sender.ends[i])} to ${receiver.label} ${receiver.tasks[j]} at ${how(receiver.starts[j])}`)));
    }
    for (const t of ticks(0, end, Math.max(2, Math.floor(width / 130))))
      root.append(svg("text", {x: toX(t), y: rows.length * high + 16, "text-anchor": toX(t) > width - 30 ? "end" : "middle"}, how(t)));
    place.replaceChildren(root);
  });
  return place;
}

function scheduleSection(r) {
  const plan = at(`runs.${r}.plan`), ran = at(`runs.${r}.profile.tasks`) || [];
  if (!plan?.tasks || (plan.stages === 1 && plan.micro_batches === 1 && !ran.length)) return null;
  const units = (t) => `${say.exact(t)} unit${t === 1 ? "" : "s"}`;
  const drawn = (rows, words, how) => gantt(rows, words, how, sendsBetween(rows, plan.stages, plan.chunks));
  const predicted = wideCard(el("h3", {}, `Planned: ${plan.schedule}`), drawn(plan.tasks.map((s) => ({label: `stage ${s.stage}`, ...s})), "planned schedule: tasks of each stage over time", units),
      el("p", {class: "note"}, "Idle: ", figure(`runs.${r}.plan.bubble`, "percent"), ". A forward pass counts as one unit, a backward pass as two."));
  const measured = ran.length ? wideCard(el("h3", {}, "Measured"), drawn(ran.map((s) => ({label: plan.stages > 1 ? `stage ${s.stage}` : `rank ${s.rank}`, ...s})), "measured schedule: tasks of each stage over time", say.seconds),
      el("p", {class: "note"}, `Last profiled step on the first rank of each stage. Gaps are communication, waiting, and the optimizer update.`)) : null;
  const key = [["F", "forward"], ["B", "backward"], ["W", "weight gradients"]].filter(([k]) => plan.tasks.some((s) => s.tasks.some((t) => t[0] === k)));
  return section("schedule", "Step schedule", null, el("div", {class: "grid"}, predicted, measured),
                 el("div", {class: "legend"}, key.map(([k, name]) => el("span", {}, el("i", {style: `background: ${color(taskColor[k])}`}), `${k}n: ${name} of micro-batch n`)),
                    plan.stages > 1 ? el("span", {}, el("i", {class: "send"}), "sends to the next stage") : null));
}

/// Kinds of memory, from the bottom up. The last three change during a step.
const memoryKinds = ["weights", "master", "optimizer", "workspace", "activations", "gradients", "scratch"];

/// Round numbers in the unit in which `most` is formatted.
function byteTicks(most) {
  const unit = 1024 ** Math.min(4, Math.floor(Math.log(most) / Math.log(1024)));
  return ticks(0, most / unit, 4).map((t) => t * unit);
}

function memoryCourse(c, words) {
  const place = el("div", {}), height = 220, course = c.memory_course, points = course.activations.length;
  const at = (kind, i) => kind in course ? course[kind][i] : c.memory[kind] || 0;
  const kinds = memoryKinds.filter((kind) => course.activations.some((_, i) => at(kind, i) > 0));
  onWidth(place, (width) => {
    const most = Math.max(c.memory.total, 1), left = 70, top = 8, bottom = height - 22, toX = (i) => left + i / Math.max(points, 1) * (width - left - 4), toY = (b) => bottom - b / most * (bottom - top);
    const root = svg("svg", {viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": words, "data-most": most});
    for (const t of byteTicks(most)) root.append(svg("line", {class: "grid-line", x1: left, x2: width - 4, y1: toY(t), y2: toY(t)}), svg("text", {x: left - 6, y: toY(t) + 4, "text-anchor": "end"}, say.bytes(t)));
    let below = new Array(points).fill(0);
    for (const kind of kinds) {
      const above = below.map((b, i) => b + at(kind, i));
      let path = "";
      above.forEach((b, i) => { path += `${i ? "L" : "M"}${toX(i).toFixed(1)} ${toY(b).toFixed(1)}L${toX(i + 1).toFixed(1)} ${toY(b).toFixed(1)}`; });
      for (let i = points - 1; i >= 0; --i) path += `L${toX(i + 1).toFixed(1)} ${toY(below[i]).toFixed(1)}L${toX(i).toFixed(1)} ${toY(below[i]).toFixed(1)}`;
      const peak = Math.max(...course.activations.map((_, i) => at(kind, i)));
      root.append(svg("path", {d: `${path}Z`, style: `fill: ${color(memoryKinds.indexOf(kind))}`, opacity: 0.85}, svg("title", {}, `${kind}: ${kind in course ? "at most " : ""}${say.bytes(peak)}`)));
      below = above;
    }
    root.append(svg("line", {class: "cross", x1: left, x2: width - 4, y1: toY(most), y2: toY(most)}),
                svg("text", {x: left, y: height - 6}, "first instruction"), svg("text", {x: width - 4, y: height - 6, "text-anchor": "end"}, "last"));
    place.replaceChildren(root);
  });
  return el("div", {}, place, el("div", {class: "legend"}, kinds.map((kind) => el("span", {}, el("i", {style: `background: ${color(memoryKinds.indexOf(kind))}`}), kind))));
}

function memorySection(r) {
  const path = `runs.${r}.plan.rank_classes`, classes = at(path);
  if (!classes) return null;
  const kinds = [...new Set(classes.flatMap((c) => Object.keys(c.memory)))];
  const ofRanks = (c) => /^\d+$/.test(c.ranks) ? `rank ${c.ranks}` : `ranks ${ranksText(c.ranks)}`;
  const label = (c) => c.server !== undefined ? `server ${c.server}` : at(`runs.${r}.plan.stages`) > 1 ? `stage ${c.stage}, ${ofRanks(c)}` : ofRanks(c);
  const rows = classes.slice(0, 64).map((c, i) => [label(c), ...kinds.map((kind) => c.memory[kind] === undefined ? "" : figure(`${path}.${i}.memory.${kind}`, "bytes"))]);
  const same = (c, d) => d.stage === c.stage && d.server === c.server && JSON.stringify(d.memory) === JSON.stringify(c.memory);
  const all = (c) => ({...c, ranks: classes.filter((d) => same(c, d)).map((d) => d.ranks).join(",")});
  const distinct = classes.filter((c, i) => c.memory_course && classes.findIndex((d) => same(c, d)) === i).map(all);
  const course = distinct.length ? wideCard(el("h3", {}, "Memory per rank over a step"),
      tabs(distinct.map(label), (i) => memoryCourse(distinct[i], `memory over a step of ${label(distinct[i])}, by kind; the peak values are in the table`), "ranks")) : null;
  return section("memory", "Memory per rank", "The dashed line is the total. Activations, gradients and scratch vary during the step; each point is the maximum over several instructions.", el("div", {class: "grid"}, course,
                 wideCard(table(["ranks", ...kinds.map((k) => `>${k.replace(/_/g, " ")}`)], rows, "Memory by kind"),
                          classes.length > rows.length ? el("p", {class: "note"}, `The first ${rows.length} of ${say.exact(classes.length)} classes of ranks.`) : null)));
}

function estimateCard(r) {
  const path = `runs.${r}.plan.estimate`;
  if (!at(path)) return null;
  return section("estimate", "Predicted step time", null, card(table(["part", ">time"], [...Object.keys(at(`${path}.parts`)).map((part) => [part, say.seconds(at(`${path}.parts`)[part])]),
      [el("b", {}, "total"), figure(`${path}.seconds`, "seconds")]], `On ${at(`${path}.machine`)}`),
      el("p", {class: "note"}, "90 % of steps are expected between ", figure(`${path}.low`, "seconds"), " and ", figure(`${path}.high`, "seconds"), ".")));
}
