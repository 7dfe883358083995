// Collectives as layers of hybrid_parallel, where shapes are one rank's. attrs: group (lists of ranks in the
// stage), group_size. They are compiled to collective instructions and have no kernels.
#include <fmt/format.h>

#include "engine/base/checked.h"
#include "engine/ops/elementwise.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/op_family.h"

namespace trainctl {
namespace {

constexpr const char* kWhyNot = "hybrid_parallel leaves layouts to the job: activations are not cut";

/// A rule in which inputs and outputs share no letters, so that no dim can be sharded.
RuleText collective_rule(Infos in, const Attrs&) {
  const size_t ndim = in[0].shape.size();
  const std::string all = letters(2 * ndim);
  return {all.substr(0, ndim) + "->" + all.substr(ndim), all, kWhyNot};
}

Cost collective_cost(Infos in, Infos out, const Attrs&) { return traffic_cost(in, out, 0); }

std::vector<TensorInfo> infer_same(std::string_view op, Infos in) {
  expect_inputs(op, in, 1, 1);
  expect_floats(op, in);
  return {in[0]};
}

/// Multiplies dim `dim` of the shape by the size of the group.
void grow(std::string_view op, TensorInfo& info, int64_t dim, int64_t group_size) {
  if (dim < 0 || dim >= static_cast<int64_t>(info.shape.size())) {
    shape_error(fmt::format("{}: there is no dim {} in {}", op, dim, to_string(info)));
  }
  info.shape[dim] = capped_product(info.shape[dim], group_size);  // the builder refuses sizes that are too large
}

void shrink(std::string_view op, TensorInfo& info, int64_t dim, int64_t group_size) {
  if (dim < 0 || dim >= static_cast<int64_t>(info.shape.size())) {
    shape_error(fmt::format("{}: there is no dim {} in {}", op, dim, to_string(info)));
  }
  if (info.shape[dim] % group_size != 0) {
    shape_error(fmt::format("{}: dim {} of {} cannot be divided evenly over the {} ranks of a group", op, dim,
                            to_string(info), group_size));
  }
  info.shape[dim] /= group_size;
}

}  // namespace

extern const OpDef all_reduce_op = {
    .name = "all_reduce",
    .infer = [](Infos in, const Attrs&) { return infer_same("all_reduce", in); },
    .rule = collective_rule,
    .backward = [](GradBuilder& g) { g.set_in_grad(0, "all_reduce", {g.out_grad()}, g.attrs()); },
    .kernel = {.name = "all_reduce", .cost = collective_cost},
    .collective = LayerCollective::all_reduce,
};

/// Concatenates the ranks' parts along attr dim (0).
extern const OpDef all_gather_op = {
    .name = "all_gather",
    .infer =
        [](Infos in, const Attrs& attrs) {
          auto out = infer_same("all_gather", in);
          grow("all_gather", out[0], attrs.integer("dim", 0), attrs.integer("group_size"));
          return out;
        },
    .rule = collective_rule,
    .backward = [](GradBuilder& g) { g.set_in_grad(0, "reduce_scatter", {g.out_grad()}, g.attrs()); },
    .kernel = {.name = "all_gather", .cost = collective_cost},
    .collective = LayerCollective::all_gather,
};

/// Sums, and leaves each rank its block along attr dim (0).
extern const OpDef reduce_scatter_op = {
    .name = "reduce_scatter",
    .infer =
        [](Infos in, const Attrs& attrs) {
          auto out = infer_same("reduce_scatter", in);
          shrink("reduce_scatter", out[0], attrs.integer("dim", 0), attrs.integer("group_size"));
          return out;
        },
    .rule = collective_rule,
    .backward = [](GradBuilder& g) { g.set_in_grad(0, "all_gather", {g.out_grad()}, g.attrs()); },
    .kernel = {.name = "reduce_scatter", .cost = collective_cost},
    .collective = LayerCollective::reduce_scatter,
};

/// Splits attr split_dim, sends block j to rank j, and concatenates the received blocks along attr concat_dim.
extern const OpDef all_to_all_op = {
    .name = "all_to_all",
    .infer =
        [](Infos in, const Attrs& attrs) {
          auto out = infer_same("all_to_all", in);
          shrink("all_to_all", out[0], attrs.integer("split_dim"), attrs.integer("group_size"));
          grow("all_to_all", out[0], attrs.integer("concat_dim"), attrs.integer("group_size"));
          return out;
        },
    .rule = collective_rule,
    .backward =
        [](GradBuilder& g) {
          Attrs attrs = g.attrs();
          attrs.set("split_dim", g.attrs().integer("concat_dim"));
          attrs.set("concat_dim", g.attrs().integer("split_dim"));
          g.set_in_grad(0, "all_to_all", {g.out_grad()}, attrs);
        },
    .kernel = {.name = "all_to_all", .cost = collective_cost},
    .collective = LayerCollective::all_to_all,
};

/// Copies the input of the group's rank attr root to every rank of the group.
extern const OpDef broadcast_op = {
    .name = "broadcast",
    .infer = [](Infos in, const Attrs&) { return infer_same("broadcast", in); },
    .rule = collective_rule,
    .backward = [](GradBuilder& g) { g.set_in_grad(0, "reduce", {g.out_grad()}, g.attrs()); },
    .kernel = {.name = "broadcast", .cost = collective_cost},
    .collective = LayerCollective::broadcast,
};

/// The sum on rank attr root, 0 on the others: broadcast's backward.
extern const OpDef reduce_op = {
    .name = "reduce",
    .infer = [](Infos in, const Attrs&) { return infer_same("reduce", in); },
    .kernel = {.name = "reduce", .cost = collective_cost},
    .collective = LayerCollective::reduce,
};

extern const LayerDef all_reduce_layer, all_gather_layer, reduce_scatter_layer, all_to_all_layer, broadcast_layer;

extern const OpFamily collectives_family = {
    .ops = {&all_reduce_op, &all_gather_op, &reduce_scatter_op, &all_to_all_op, &broadcast_op, &reduce_op},
    .layers = {&all_reduce_layer, &all_gather_layer, &reduce_scatter_layer, &all_to_all_layer, &broadcast_layer}};

}  // namespace trainctl
