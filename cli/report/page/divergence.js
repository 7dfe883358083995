// Where two runs diverge: a map of tensors and steps (train.fingerprints).

const mostDivergenceRows = 80;

/// The color of a relative distance: the logarithm from 1e-9 to 1.
function distanceColor(distance) {
  if (distance === null) return "none";
  if (distance === 0) return "var(--grid)";
  const share = distance < 0 ? 1 : Math.min(1, Math.max(0.08, 1 + Math.log10(distance) / 9));
  return `color-mix(in srgb, var(--bad) ${Math.round(100 * share)}%, var(--grid))`;
}

function divergenceSection(found) {
  const differs = (row) => row.distances.some((distance) => distance !== 0 && distance !== null);
  const rows = [...found.rows.filter(differs), ...found.rows.filter((row) => !differs(row))].slice(0, mostDivergenceRows);
  const size = 14, left = 300, top = 24;
  const map = svg("svg", {role: "img", "aria-label": "distance of each tensor at each step", width: left + size * found.steps.length + 8, height: top + size * rows.length + 4});
  const every = Math.max(1, Math.ceil(found.steps.length / 12));
  found.steps.forEach((step, s) => { if (s % every === 0) map.append(svg("text", {x: left + s * size, y: top - 8}, step)); });
  rows.forEach((row, r) => {
    map.append(svg("text", {x: left - 8, y: top + r * size + size - 3, "text-anchor": "end"}, row.tensor));
    row.distances.forEach((distance, s) => {
      const text = distance === null ? "not compared" : distance === 0 ? "same bits" : distance < 0 ? "not a number" : `distance ${distance.toExponential(2)}`;
      map.append(svg("rect", {x: left + s * size, y: top + r * size, width: size - 1, height: size - 1, style: `fill: ${distanceColor(distance)}`},
          svg("title", {}, `step ${found.steps[s]}, ${row.tensor}: ${text}`)));
    });
  });
  const first = found.first ? `The first tensor that differs is the ${found.first.kind} ${found.first.tensor} after step ${found.first.step}.` : "All compared tensors have the same bits.";
  const leftOut = found.rows.length - rows.length;
  return section("divergence", "Where they diverge", null, wideCard(el("p", {}, first), map, leftOut ? el("p", {class: "note"}, `${leftOut} tensors without a difference are left out.`) : ""));
}
