// The network as the plan shards it: one row per layer, repeated blocks once, tensors as tiles, moves between layers as chips.

/// "[8@0.1.2, 1]" -> [[0, 1, 2], []]. With a single mesh axis the text names none: every sharded dim is sharded over it.
function axesOf(layout) {
  const inner = layout.slice(1, layout.indexOf("]"));
  return inner === "" ? [] : inner.split(", ").map((dim) => {
    const [cuts, axes] = dim.split("@");
    if (axes !== undefined) return axes.split(".").map(Number);
    return Number(cuts) > 1 ? [0] : [];
  });
}

/// For each rank of a stage, in order, the index of its shard of each dim.
function partsOf(layout, mesh) {
  const size = mesh.reduce((a, b) => a * b, 1), strides = mesh.map((_, i) => mesh.slice(i + 1).reduce((a, b) => a * b, 1));
  const axes = axesOf(layout), ranks = [];
  for (let rank = 0; rank < size; ++rank)
    ranks.push(axes.map((of) => of.reduce((index, axis) => index * mesh[axis] + Math.floor(rank / strides[axis]) % mesh[axis], 0)));
  return ranks;
}

const rankColor = (rank, ranks) => ranks === 1 ? "hsl(215 45% var(--tile-l))" : `hsl(${(210 + 360 * rank / ranks) % 360} var(--tile-s) var(--tile-l))`;

/// A tensor as a square: sharded dims as rows and columns, a color for the first rank that has the shard.
function tiles(tensor, plan) {
  const mesh = plan.mesh, ranks = partsOf(tensor.layout, mesh), size = ranks.length, side = 34;
  const cut = tensor.cuts.map((c, d) => [c, d]).filter(([c]) => c > 1).map(([, d]) => d);
  const [rowDim, columnDim] = cut.length > 1 ? cut : cut[0] === tensor.cuts.length - 1 && tensor.cuts.length > 1 ? [-1, cut[0]] : [cut[0] ?? -1, -1];
  const rows = rowDim < 0 ? 1 : tensor.cuts[rowDim], columns = columnDim < 0 ? 1 : tensor.cuts[columnDim];
  const holders = new Map();
  ranks.forEach((part, rank) => {
    const key = `${rowDim < 0 ? 0 : part[rowDim]},${columnDim < 0 ? 0 : part[columnDim]}`;
    holders.set(key, [...(holders.get(key) || []), rank]);
  });
  const parts = tensor.cuts.reduce((a, b) => a * b, 1), copies = size / parts;
  const held = parts === 1 ? (size === 1 ? "whole" : `replicated on ${size} ranks`) : `sharded ${tensor.cuts.map((c) => c).join("×")}` + (copies > 1 ? `, ${copies} replicas` : "");
  const words = `${tensor.tensor} ${tensor.shape.join("×")}: ${held}`;
  const root = svg("svg", {viewBox: `0 0 ${side} ${side}`, width: side, height: side, role: "img", "aria-label": words});
  for (let i = 0; i < rows && rows <= 64; ++i) for (let j = 0; j < columns && columns <= 64; ++j) {
    const of = holders.get(`${i},${j}`) || [0], gap = rows > 12 || columns > 12 ? 0 : 0.8;
    root.append(svg("rect", {x: j * side / columns + gap / 2, y: i * side / rows + gap / 2, width: side / columns - gap, height: side / rows - gap, rx: 1.5,
                             style: `fill: ${rankColor(of[0], size)}`, opacity: parts === 1 && size > 1 ? 0.45 : 1},
                    svg("title", {}, `${words}; rank${of.length > 1 ? "s" : ""} ${of.slice(0, 16).join(", ")}${of.length > 16 ? " …" : ""} of the stage`)));
  }
  return el("span", {class: "tensor", title: words}, root, el("span", {}, el("b", {}, tensor.shape.join("×") || "scalar"), held));
}

/// The tensor that a move is of: "relu1" for "all_gather relu1" and for "send grad.relu1".
const tensorOf = (move) => move.name.slice(move.name.indexOf(" ") + 1).replace(/^grad\./, "");

/// Forward and backward moves of a micro-batch, keyed by the tensor that they move, without those of `others`.
function movesByTensor(plan, others) {
  const moves = new Map();
  for (const move of plan.redistributions)
    if (!others.has(move)) moves.set(tensorOf(move), [...(moves.get(tensorOf(move)) || []), move]);
  return moves;
}

/// The sends between two rows of different stages: {between: row number -> sends above that row, all: the set of them}. A
/// row of several stages, which a repeated block may be, keeps its sends.
function crossings(lines, plan) {
  const rows = lines.filter((line) => line.times === 0), between = new Map(), all = new Set(), rowOf = new Map(), maker = new Map();
  const stages = rows.map((row) => [...new Set(row.rows.map((l) => plan.layers[l].stage))]);
  const stage = (r) => stages[r].length === 1 ? stages[r][0] : -1;
  rows.forEach((row, r) => row.rows.forEach((l) => rowOf.set(l, r)));
  plan.layers.forEach((layer, l) => layer.outputs.forEach((output) => maker.set(output.tensor, l)));
  const isBorder = (r) => stage(r - 1) >= 0 && stage(r) >= 0 && stage(r - 1) !== stage(r);
  for (const move of plan.redistributions) {
    const from = rowOf.get(maker.get(tensorOf(move)));
    if (move.kind !== "send" || from === undefined) continue;
    for (let r = from + 1; r < rows.length; ++r) {
      if (!isBorder(r) || stage(move.phase === "forward" ? r - 1 : r) !== move.stage) continue;
      between.set(r, [...(between.get(r) || []), move]);
      all.add(move);
      break;
    }
  }
  return {between, all};
}

function chip(move, text) {
  return el("span", {class: move.phase === "forward" ? "chip" : "chip up", title: `${move.phase}: ${move.name}, ${say.exact(move.bytes)} bytes per micro-batch`}, text);
}

/// The border between the stages of two rows, with what crosses it.
function border(above, below, sends) {
  return el("div", {class: "border"}, el("span", {class: "soft"}, `stage ${above} → stage ${below}`),
      sends.map((move) => chip(move, `${move.phase === "forward" ? "▼" : "▲"} ${move.name} ${say.bytes(move.bytes)}`)));
}

/// Chips for the moves of the rows' tensors, equal ones merged: "▼ all_gather 8.0 KiB ×2".
function chips(layers, moves) {
  const counts = new Map();
  for (const layer of layers) for (const output of layer.outputs) for (const move of moves.get(output.tensor) || []) {
    const key = `${move.phase === "forward" ? "▼" : "▲"} ${move.kind} ${say.bytes(move.bytes)}`;
    counts.set(key, {...move, times: (counts.get(key)?.times || 0) + 1});
  }
  return [...counts].map(([text, move]) => chip(move, text + (move.times > 1 ? ` ×${move.times}` : "")));
}

function layerRow(line, plan, moves) {
  const layers = line.rows.map((i) => plan.layers[i]), first = layers[0];
  const stages = [...new Set(layers.map((l) => l.stage))], stage = plan.stages > 1 ? `stage ${stages.length > 1 ? `${stages[0]}–${stages[stages.length - 1]}` : stages[0]}, ` : "";
  const chipsOf = chips(layers, moves);
  return el("div", {class: "layer", "data-layers": line.rows.join(" "), style: plan.stages > 1 ? `--stage: ${color(first.stage)}` : ""},
      el("div", {}, el("div", {class: "name"}, line.name), el("div", {class: "soft"}, `${stage}${first.type}${first.recompute ? ", recomputed" : ""}`)),
      el("div", {class: "tensors"}, first.inputs.map((t) => tiles(t, plan)), el("span", {class: "arrow", "aria-hidden": "true"}, "→"), first.outputs.map((t) => tiles(t, plan))),
      el("div", {class: "why"}, first.reason || first.choice),
      chipsOf.length ? el("div", {class: "moves"}, chipsOf) : null);
}

/// Rows and blocks, nested as in the folded plan.
function rowsOf(lines, plan) {
  const root = el("div", {class: "net"}), open = [root], {between, all} = crossings(lines, plan), moves = movesByTensor(plan, all);
  let number = 0, above = null;
  for (const line of lines) {
    open.length = Math.min(open.length, line.depth + 1);
    const parent = open[open.length - 1];
    if (line.times > 0) {
      const block = el("div", {class: "block"}, el("div", {class: "times"}, `${line.name}, ${line.times} times`));
      parent.append(block);
      open.push(block);
    } else {
      const stage = plan.layers[line.rows[0]].stage;
      if (between.has(number)) parent.append(border(above, stage, between.get(number)));
      parent.append(layerRow(line, plan, moves));
      above = stage;
      ++number;
    }
  }
  return root;
}

/// Curves beside the rows, from a layer to readers of its output that are not in the next row.
function wires(net, plan) {
  const rows = [...net.querySelectorAll(".layer")], rowOf = new Map(), maker = new Map();
  rows.forEach((row, r) => row.dataset.layers.split(" ").forEach((l) => rowOf.set(Number(l), r)));
  plan.layers.forEach((layer, l) => layer.outputs.forEach((output) => maker.set(output.tensor, l)));
  const links = [];
  rows.forEach((row, r) => {
    const last = row.dataset.layers.split(" ").map(Number).pop();
    for (const input of plan.layers[last].inputs) {
      const from = rowOf.get(maker.get(input.tensor));
      if (from !== undefined && from < r - 1) links.push([from, r]);
    }
  });
  if (!links.length || links.length > 400) return;
  net.style.paddingLeft = "34px";
  const root = svg("svg", {class: "wires", width: 34, height: 10, "aria-hidden": "true"});
  net.prepend(root);
  onWidth(net, () => {
    const top = net.getBoundingClientRect().top, middle = (r) => { const box = rows[r].getBoundingClientRect(); return box.top - top + box.height / 2; };
    root.replaceChildren(...links.map(([a, b], i) => {
      const x = 26 - Math.min(22, 8 + 4 * (i % 4)), [y0, y1] = [middle(a) + 6, middle(b) - 6], end = rows[b].getBoundingClientRect().left - net.getBoundingClientRect().left;
      const start = rows[a].getBoundingClientRect().left - net.getBoundingClientRect().left;
      return svg("path", {d: `M${start} ${y0}C${x} ${y0} ${x} ${y0} ${x} ${y0 + 14}L${x} ${y1 - 14}C${x} ${y1} ${x} ${y1} ${end - 1} ${y1}m-5 -3l5 3l-5 3`});
    }));
  });
}

function meshKey(plan) {
  const size = plan.mesh.reduce((a, b) => a * b, 1);
  if (size === 1) return null;
  const shown = Math.min(size, 64);
  return el("div", {class: "legend", "aria-label": "colors of ranks"}, Array.from({length: shown}, (_, rank) =>
      el("span", {}, el("i", {style: `background: ${rankColor(rank, size)}`}), `rank ${rank}`)), size > shown ? el("span", {}, "…") : null);
}

function networkSection(r) {
  const plan = at(`runs.${r}.plan`), lines = at(`runs.${r}.folds.layers`);
  if (!lines) return null;
  const net = rowsOf(lines, plan);
  wires(net, plan);
  const note = "Each square is an entire tensor; each color is a rank of the stage and marks its shard. ▼ marks moves in the forward pass, ▲ in the backward pass, with bytes per micro-batch; sends stand between the stages. "
      + "Lines on the left connect outputs with layers further below that read them.";
  const title = `Network on ${plan.stages > 1 ? `${plan.stages} stages of ` : ""}${say.exact(plan.ranks / plan.stages)} rank${plan.ranks / plan.stages === 1 ? "" : "s"}`;
  return section("network", title, note, meshKey(plan), net);
}
