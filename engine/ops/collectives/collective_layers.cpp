// The collectives that a hybrid_parallel job uses as layers. Their groups are lists of ranks of the stage: every
// rank is in exactly one list, and all lists have the same size.
#include <fmt/format.h>

#include <numeric>

#include "engine/base/text.h"
#include "engine/ops/expect.h"
#include "engine/ops/layer_def.h"

namespace trainctl {
namespace {

using Groups = std::vector<Ints>;

Groups groups_of(const LayerContext& layer) {
  Groups groups = layer.attrs.int_lists("group");
  if (!groups.empty()) return groups;
  Ints all(static_cast<size_t>(layer.ranks_in_stage));
  std::iota(all.begin(), all.end(), 0);
  return {all};
}

/// Throws ShapeError unless the groups have equal sizes and contain each rank of the stage exactly once.
void expect_partition(const Groups& groups, int ranks) {
  std::vector<int> times(static_cast<size_t>(ranks), 0);
  for (const Ints& group : groups) {
    if (group.size() != groups[0].size() || group.empty()) {
      shape_error(fmt::format("group {}: all lists must have the same number of ranks", to_string(Value{groups})));
    }
    for (int64_t rank : group) {
      if (rank < 0 || rank >= ranks) {
        shape_error(fmt::format("group {}: rank {} does not exist in a stage of {}", to_string(Value{groups}), rank,
                                plural(ranks, "rank")));
      }
      ++times[static_cast<size_t>(rank)];
    }
  }
  for (int rank = 0; rank < ranks; ++rank) {
    if (times[static_cast<size_t>(rank)] == 1) continue;
    shape_error(fmt::format("group {}: rank {} is in {}, but each rank of the stage must be in exactly one",
                            to_string(Value{groups}), rank, plural(times[static_cast<size_t>(rank)], "list")));
  }
}

/// Attributes that all of these ops have.
Attrs group_attrs(const LayerContext& layer) {
  if (!layer.hybrid) {
    shape_error(
        fmt::format("{} layers are only for parallel.mode: hybrid_parallel; in other modes the planner inserts the "
                    "collectives",
                    layer.def.name));
  }
  const Groups groups = groups_of(layer);
  expect_partition(groups, layer.ranks_in_stage);
  return {{"group", groups}, {"group_size", static_cast<int64_t>(groups[0].size())}};
}

/// Attributes of the ops that act on one dim of the input, here dim 0.
Attrs first_dim_attrs(const LayerContext& layer) {
  Attrs attrs = group_attrs(layer);
  attrs.set("dim", int64_t{0});
  return attrs;
}

/// The dim that a field names, counted from the front. It may not exist: the op then reports the error.
int64_t dim_of(const LayerContext& layer, std::string_view field) {
  const int64_t dim = layer.attrs.integer(field);
  return dim < 0 ? dim + static_cast<int64_t>(layer.shape().size()) : dim;
}

Field group_field() {
  return int_lists("group",
                   "Groups of ranks of the stage, given as lists, with each rank in exactly one list. If omitted, all "
                   "ranks are one group.")
      .at_least(0);
}

}  // namespace

extern const LayerDef all_reduce_layer = {
    .name = "all_reduce",
    .doc = "Sums over the ranks of the group.",
    .fields = {group_field()},
    .collective = true,
    .emit = [](LayerContext& layer) { return layer.emit("all_reduce", group_attrs(layer)); },
};

extern const LayerDef all_gather_layer = {
    .name = "all_gather",
    .doc = "Concatenates the shards of the group along dim 0.",
    .fields = {group_field()},
    .collective = true,
    .emit = [](LayerContext& layer) { return layer.emit("all_gather", first_dim_attrs(layer)); },
};

extern const LayerDef reduce_scatter_layer = {
    .name = "reduce_scatter",
    .doc = "Sums over the ranks of the group; each rank keeps its shard of dim 0.",
    .fields = {group_field()},
    .collective = true,
    .emit = [](LayerContext& layer) { return layer.emit("reduce_scatter", first_dim_attrs(layer)); },
};

extern const LayerDef all_to_all_layer = {
    .name = "all_to_all",
    .doc = "Splits one dim over the group and concatenates the received shards along another.",
    .fields = {integer("split_dim", "The dim to split.").required(),
               integer("concat_dim", "The dim along which to concatenate.").required(), group_field()},
    .collective = true,
    .emit =
        [](LayerContext& layer) {
          Attrs attrs = group_attrs(layer);
          attrs.set("split_dim", dim_of(layer, "split_dim"));
          attrs.set("concat_dim", dim_of(layer, "concat_dim"));
          return layer.emit("all_to_all", attrs);
        },
};

extern const LayerDef broadcast_layer = {
    .name = "broadcast",
    .doc = "Copies the values of the root to every rank of the group.",
    .fields = {group_field(), integer("root", "Index of the root in its group.").defaults(int64_t{0}).at_least(0)},
    .collective = true,
    .emit =
        [](LayerContext& layer) {
          Attrs attrs = group_attrs(layer);
          const int64_t root = layer.attrs.integer("root"), size = attrs.integer("group_size");
          if (root < 0 || root >= size) {
            shape_error(fmt::format("root {} is not one of the {} ranks of a group", root, size));
          }
          attrs.set("root", root);
          return layer.emit("broadcast", attrs);
        },
};

}  // namespace trainctl
