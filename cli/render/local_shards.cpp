// hybrid_parallel: a table of the shards of each tensor and the ranks that have them.
#include "cli/render/local_shards.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "cli/render/fold.h"
#include "cli/text/table.h"
#include "engine/base/ranges.h"
#include "engine/base/text.h"

namespace trainctl {
namespace {

using Json = nlohmann::ordered_json;
using Ints = std::vector<int64_t>;

/// "0-5", "3".
std::string range(int64_t first, int64_t size) {
  return std::to_string(first) + (size == 1 ? "" : "-" + std::to_string(first + size - 1));
}

/// Describes block `number`: "rows 0-5, columns 0-11", "term 2 of 4"; for weights and tensors with more dims "[0-5,
/// :]".
std::string block_text(const Json& row, int64_t number) {
  const auto shape = row["shape"].get<Ints>(), cuts = row["cuts"].get<Ints>();
  const bool weight = row["kind"] == "weight" || row["kind"] == "state";
  const int64_t terms = row["terms"], term = number % terms;
  std::vector<std::string> slices(shape.size(), ":");
  number /= terms;
  for (size_t d = shape.size(); d-- > 0; number /= cuts[d])
    if (cuts[d] > 1) slices[d] = range(number % cuts[d] * shape[d], shape[d]);
  size_t last_cut = 0, num_cut = 0;
  for (size_t d = 0; d < slices.size(); ++d) {
    if (slices[d] == ":") continue;
    last_cut = d;
    ++num_cut;
  }
  std::vector<std::string> words;
  if (weight || last_cut > 1 || (last_cut == 1 && shape.size() > 2)) {
    if (num_cut > 0) words.push_back("[" + join(slices) + "]");
  } else {
    constexpr std::array<std::string_view, 2> kDims = {"rows ", "columns "};
    for (size_t d = 0; d <= last_cut && d < slices.size(); ++d)
      if (slices[d] != ":") words.push_back(std::string(kDims[d]) + slices[d]);
  }
  if (terms > 1) words.push_back(fmt::format("term {} of {}", term + 1, terms));
  return words.empty() ? "whole tensor" : join(words);
}

/// "ranks 0-3: rows 0-5".
std::vector<std::string> parts(const Json& row) {
  std::map<int, std::vector<int>> ranks_of;  // by block
  for (const Json& alike : row["holders"]) {
    const std::vector<int> blocks = numbers_of(alike["blocks"].get<std::string>());
    const std::vector<int> ranks = numbers_of(alike["ranks"].get<std::string>());
    const std::vector<int> starts = numbers_of(alike["starts"].get<std::string>());
    for (size_t b = 0; b < blocks.size(); ++b)
      for (int rank : ranks) ranks_of[blocks[b]].push_back(rank - ranks.front() + starts[b]);
  }
  std::vector<std::string> words;
  for (const auto& [block, ranks] : ranks_of)
    words.push_back(fmt::format("{} {}: {}", ranks.size() == 1 ? "rank" : "ranks",
                                number_ranges({ranks.begin(), ranks.end()}), block_text(row, block)));
  return words;
}

std::string parts_text(const Json& row, bool full) {
  constexpr size_t kShown = 4, kFirst = 2;
  if (row["cuts"].is_null()) return "not shards of one tensor";
  const std::vector<std::string> all = parts(row);
  std::vector<std::string> words;
  for (size_t i = 0; i < all.size(); ++i) {
    if (full || all.size() <= kShown || i < kFirst || i + 1 == all.size()) words.push_back(all[i]);
    if (!full && all.size() > kShown && i == kFirst) words.push_back("…");
  }
  return join(words, "; ") + (words.size() < all.size() ? fmt::format(", {} shards", all.size()) : "");
}

std::string whole_shape(const Json& row) {
  if (row["cuts"].is_null()) return "-";
  Ints shape = row["shape"].get<Ints>();
  for (size_t d = 0; d < shape.size(); ++d) shape[d] *= row["cuts"][d].get<int64_t>();
  return format_list(shape);
}

void add(Table& table, const Json& row, const std::string& name, bool full) {
  table.add({row["stage"].dump(), name, row["kind"].get<std::string>(), format_list(row["shape"].get<Ints>()),
             whole_shape(row), parts_text(row, full)});
}

}  // namespace

std::string render_local_shards(const Json& shards, bool full, size_t width) {
  Table table({">stage", "tensor", "kind", "local shape", "global shape", "shards by rank"});
  std::vector<FoldRow> rows;
  bool has_terms = false;
  for (const Json& row : shards) {
    has_terms |= !row["cuts"].is_null() && row["terms"].get<int64_t>() > 1;
    Json facts = row;
    facts.erase("tensor");
    const auto name = row["tensor"].get<std::string>();
    if (full) add(table, row, name, full);
    if (!full) rows.push_back({name, facts.dump()});
  }
  for (const FoldLine& line : fold_rows(rows)) {
    const std::string indent(static_cast<size_t>(2 * line.depth), ' ');
    if (line.times > 0)
      table.add_line(indent + fmt::format("{}, {} times:", line.name, line.times));
    else
      add(table, shards[line.rows.front()], indent + line.name, full);
  }
  return "\nlocal shards, per micro-batch\n" + table.str(2, width) +
         (has_terms ? "  term: the tensor is the sum of several terms, each on different ranks\n" : "");
}

}  // namespace trainctl
