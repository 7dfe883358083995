// Groups of collective layers: lists of ranks of the stage, together each rank once, all of one size.
#include "engine/model/collective_layers.h"

#include <fmt/format.h>

#include <numeric>

#include "engine/ops/expect.h"

namespace trainctl {
namespace {

using Groups = std::vector<Ints>;

Groups groups_of(const LayerContext& layer) {
  for (const auto& [name, value] : layer.attrs()) {
    if (name != "group") continue;
    if (const auto* groups = std::get_if<Groups>(&value); groups != nullptr && !groups->empty()) return *groups;
  }
  Ints all(static_cast<size_t>(layer.ranks_in_stage));
  std::iota(all.begin(), all.end(), 0);
  return {all};
}

void expect_partition(const Groups& groups, int ranks) {
  std::vector<int> times(static_cast<size_t>(ranks), 0);
  for (const Ints& group : groups) {
    if (group.size() != groups[0].size() || group.empty()) {
      shape_error(fmt::format("group {}: all lists must have as many ranks", to_string(Value{groups})));
    }
    for (int64_t rank : group) {
      if (rank < 0 || rank >= ranks) {
        shape_error(
            fmt::format("group {}: there is no rank {} in a stage of {} ranks", to_string(Value{groups}), rank, ranks));
      }
      ++times[static_cast<size_t>(rank)];
    }
  }
  for (int rank = 0; rank < ranks; ++rank) {
    if (times[static_cast<size_t>(rank)] == 1) continue;
    shape_error(fmt::format("group {}: rank {} stands in {} lists, each of the stage's {} ranks must stand in one",
                            to_string(Value{groups}), rank, times[static_cast<size_t>(rank)], ranks));
  }
}

Attrs group_attrs(const LayerContext& layer) {
  if (!layer.hybrid) {
    shape_error(
        fmt::format("{} is a layer of parallel.mode: hybrid_parallel alone; in other modes the planner "
                    "inserts the collectives",
                    layer.spec.type));
  }
  const Groups groups = groups_of(layer);
  expect_partition(groups, layer.ranks_in_stage);
  return {{"group", groups}, {"group_size", static_cast<int64_t>(groups[0].size())}};
}

TensorId emit_collective(LayerContext& layer, std::string_view op, Attrs attrs) {
  return layer.builder.emit(op, layer.inputs, std::move(attrs))[0];
}

int64_t dim_of(const LayerContext& layer, std::string_view field) {
  const int64_t dim = layer.attrs().integer(field);
  return dim < 0 ? dim + static_cast<int64_t>(layer.shape().size()) : dim;
}

}  // namespace

TensorId lower_all_reduce(LayerContext& layer) { return emit_collective(layer, "all_reduce", group_attrs(layer)); }

TensorId lower_all_gather(LayerContext& layer) {
  Attrs attrs = group_attrs(layer);
  attrs.set("dim", int64_t{0});
  return emit_collective(layer, "all_gather", attrs);
}

TensorId lower_reduce_scatter(LayerContext& layer) {
  Attrs attrs = group_attrs(layer);
  attrs.set("dim", int64_t{0});
  return emit_collective(layer, "reduce_scatter", attrs);
}

TensorId lower_all_to_all(LayerContext& layer) {
  Attrs attrs = group_attrs(layer);
  attrs.set("split_dim", dim_of(layer, "split_dim"));
  attrs.set("concat_dim", dim_of(layer, "concat_dim"));
  return emit_collective(layer, "all_to_all", attrs);
}

TensorId lower_broadcast(LayerContext& layer) {
  Attrs attrs = group_attrs(layer);
  const int64_t root = layer.attrs().integer("root", 0), size = attrs.integer("group_size");
  if (root < 0 || root >= size) {
    shape_error(fmt::format("root {} is not one of the {} ranks of a group", root, size));
  }
  attrs.set("root", root);
  return emit_collective(layer, "broadcast", attrs);
}

}  // namespace trainctl
