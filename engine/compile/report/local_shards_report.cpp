// hybrid_parallel: reports which ranks have which part of each tensor.
#include "engine/compile/report/local_shards_report.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "engine/base/ranges.h"
#include "engine/plan/hybrid/local_shards.h"

namespace trainctl {
namespace {

using Json = nlohmann::ordered_json;

std::string_view kind_of(const Tensor& tensor) {
  switch (tensor.kind) {
    case TensorKind::input:
      return "data";
    case TensorKind::parameter:
      return "weight";
    case TensorKind::state:
      return "state";
    case TensorKind::activation:
    case TensorKind::gradient:
      break;
  }
  return "activation";
}

/// Blocks per dim, and the terms of the sum. All ranks have the same.
struct Cuts {
  Ints of_dims;
  int64_t terms = 1;
  friend bool operator==(const Cuts&, const Cuts&) = default;
};

Cuts cuts_of(const LocalShard& part) {
  Cuts cuts{{}, part.term.ways};
  for (const Block& block : part.dims) cuts.of_dims.push_back(block.ways);
  return cuts;
}

int block_number(const LocalShard& part) {
  int64_t number = 0;
  for (const Block& block : part.dims) number = number * block.ways + block.index;
  return static_cast<int>(number * part.term.ways + part.term.index);
}

bool all_alike(const LocalShards& shards) {
  return std::all_of(shards.of_rank.begin(), shards.of_rank.end(), [&](const LocalShard& part) {
    return part.traced && cuts_of(part) == cuts_of(shards.of_rank.front());
  });
}

/// Ranks by the block that they hold. Blocks whose ranks are in the same places, further on, share an entry.
Json holders_json(const LocalShards& shards, int first_rank) {
  std::map<int, std::vector<int>> holders;
  for (size_t r = 0; r < shards.of_rank.size(); ++r)
    holders[block_number(shards.of_rank[r])].push_back(first_rank + static_cast<int>(r));
  struct Alike {
    std::vector<int> ranks, blocks, starts;
  };
  std::map<std::vector<int>, size_t> known;  // distances from the first rank -> index in `all`
  std::vector<Alike> all;
  for (const auto& [block, ranks] : holders) {
    std::vector<int> distances;
    for (int rank : ranks) distances.push_back(rank - ranks.front());
    const auto [entry, is_new] = known.try_emplace(std::move(distances), all.size());
    if (is_new) all.push_back({ranks, {}, {}});
    all[entry->second].blocks.push_back(block);
    all[entry->second].starts.push_back(ranks.front());
  }
  Json rows = Json::array();
  for (const Alike& alike : all)
    rows.push_back({{"blocks", range_text(alike.blocks)},
                    {"ranks", range_text(alike.ranks)},
                    {"starts", range_text(alike.starts)}});
  return rows;
}

Json tensor_json(const Graph& graph, const Plan& plan, int stage, TensorId id, const LocalShards& shards) {
  const Tensor& tensor = graph.tensors[id];
  Json row = {{"stage", stage}, {"tensor", tensor.name}, {"kind", kind_of(tensor)}, {"shape", tensor.shape}};
  if (!all_alike(shards)) {
    row["cuts"] = nullptr;  // not parts of one tensor
    return row;
  }
  const Cuts cuts = cuts_of(shards.of_rank.front());
  row["cuts"] = cuts.of_dims;
  row["terms"] = cuts.terms;
  row["holders"] = holders_json(shards, stage * plan.mesh.size());
  return row;
}

}  // namespace

Json local_shards_report(const Graph& graph, const Plan& plan, bool full_batch) {
  const std::vector<LocalShards> shards = local_shards(graph, plan, full_batch);
  std::set<std::pair<int, TensorId>> listed;
  Json rows = Json::array();
  for (size_t l = 0; l < graph.layers.size(); ++l) {
    const Layer& layer = graph.layers[l];
    const int stage = plan.layers[l].virtual_stage % plan.num_stages;
    const auto list = [&](TensorId t) {
      const Tensor& tensor = graph.tensors[t];
      if (t == graph.loss || tensor.shape.empty() || shards[t].of_rank.empty()) return;
      if (tensor.producer < 0 && !listed.insert({stage, t}).second) return;
      rows.push_back(tensor_json(graph, plan, stage, t, shards[t]));
    };
    for (TensorId t : layer.inputs)
      if (graph.tensors[t].producer < 0) list(t);
    for (TensorId t : layer.outputs) list(t);
  }
  return rows;
}

}  // namespace trainctl
