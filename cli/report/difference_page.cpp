// Draws where two runs diverge, as one self-contained HTML file.
#include "cli/report/difference_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/report/html_text.h"
#include "cli/report/page.h"
#include "engine/base/text.h"

namespace trainctl {
namespace {

/// More rows or columns are left out: first those of tensors without a difference.
constexpr size_t kMostRows = 200, kMostColumns = 120;
constexpr int kCell = 14, kLabel = 320, kTop = 40;
constexpr double kLeastDecade = -9, kMostDecade = 0;

/// From the color of the background to that of an error, by the logarithm of the distance.
std::string fill_of(const TensorDistance& each) {
  if (each.distance == 0 && !each.differs) return "var(--grid)";
  const double decade = each.distance > 0 && std::isfinite(each.distance) ? std::log10(each.distance)
                        : each.distance > 0                               ? kMostDecade
                                                                          : kLeastDecade;
  const double share = std::clamp((decade - kLeastDecade) / (kMostDecade - kLeastDecade), 0.05, 1.0);
  return fmt::format("color-mix(in srgb, var(--bad) {:.0f}%, var(--grid))", 100 * share);
}

using Row = std::pair<std::string, std::string>;  // kind, tensor

/// A map as SVG: a row per tensor, a column per compared step, and the distance as the color of the cell.
std::string map_of(const RunDifference& found) {
  std::vector<Row> rows;
  std::map<Row, bool> differs;
  for (const TensorDistance& each : found.distances) {
    const Row row{each.kind, each.name};
    if (differs.try_emplace(row, false).second) rows.push_back(row);
    differs[row] = differs[row] || each.differs;
  }
  std::stable_sort(rows.begin(), rows.end(), [&](const Row& a, const Row& b) { return differs[a] > differs[b]; });
  const size_t all = rows.size();
  if (rows.size() > kMostRows) rows.resize(kMostRows);
  std::vector<int64_t> steps = found.steps;
  if (steps.size() > kMostColumns) steps.resize(kMostColumns);
  std::map<Row, size_t> place_of_row;
  std::map<int64_t, size_t> place_of_step;
  for (size_t r = 0; r < rows.size(); ++r) place_of_row[rows[r]] = r;
  for (size_t s = 0; s < steps.size(); ++s) place_of_step[steps[s]] = s;
  const auto at = [](size_t place, int first) { return first + static_cast<int>(place) * kCell; };
  std::string svg = fmt::format("<svg role=img aria-label=\"distances of tensors by step\" width={} height={}>\n",
                                at(steps.size(), kLabel) + kCell, at(rows.size(), kTop) + kCell);
  for (size_t s = 0; s < steps.size(); s += std::max<size_t>(steps.size() / 12, 1))
    svg += fmt::format("<text x={} y={}>{}</text>\n", at(s, kLabel), kTop - 8, steps[s]);
  for (size_t r = 0; r < rows.size(); ++r)
    svg += fmt::format("<text x={} y={} text-anchor=end>{} {}</text>\n", kLabel - 8, at(r, kTop) + kCell - 3,
                       html_text(rows[r].first), html_text(rows[r].second));
  for (const TensorDistance& each : found.distances) {
    const auto row = place_of_row.find({each.kind, each.name});
    const auto step = place_of_step.find(each.step);
    if (row == place_of_row.end() || step == place_of_step.end()) continue;
    svg +=
        fmt::format("<rect x={} y={} width={} height={} style=\"fill: {}\"><title>step {}, {} {}: {}</title></rect>\n",
                    at(step->second, kLabel), at(row->second, kTop), kCell - 1, kCell - 1, fill_of(each), each.step,
                    html_text(each.kind), html_text(each.name),
                    each.differs ? fmt::format("distance {:.2e}", each.distance) : "equal");
  }
  svg += "</svg>\n";
  if (rows.size() < all) svg += fmt::format("<p class=note>{} tensors are left out</p>\n", all - rows.size());
  return svg;
}

}  // namespace

std::string difference_page(const RunDifference& found, const std::string& a, const std::string& b) {
  const std::string title = html_text(a) + " and " + html_text(b);
  std::string page = fmt::format(
      "<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n<meta name=viewport content=\"width=device-width\">\n"
      "<title>Difference of {0}</title>\n<style>{1}\nmain {{ margin: 2rem auto; padding: 0 1rem; max-width: 80rem; "
      "overflow-x: auto; }}\n"
      "</style>\n<main>\n<h1>{0}</h1>\n",
      title, page_style());
  if (const TensorDistance* first = found.first())
    page += fmt::format("<p>The first tensor that differs is the {} <b>{}</b> after step {}, by {:.2e}.</p>\n",
                        html_text(first->kind), html_text(first->name), first->step, first->distance);
  else
    page += "<p>No compared tensor differs.</p>\n";
  if (found.first_loss)
    page += fmt::format("<p>The losses differ from step {} on, by {:.2e}.</p>\n", *found.first_loss,
                        found.first_loss_distance);
  for (const std::string& note : found.notes) page += "<p class=note>" + html_text(note) + "</p>\n";
  if (!found.distances.empty()) page += map_of(found);
  return page + "</main>\n</html>\n";
}

}  // namespace trainctl
