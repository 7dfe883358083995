// split: the outputs are consecutive parts of x along attr dim; attr sizes has their sizes. concat: joins the inputs
// along dim. Each is the backward pass of the other, in which parts may be missing. Then attr offsets says where each
// part begins: a split omits the rest of x, and a concat to a dim of attr size writes zeros between its parts. With
// attr whole, the dim of a split is never cut.
//
// The dim may be cut into a number of blocks that divides all sizes: each rank has one block of the whole and one of
// each part. Elements that are in the block of another rank are exchanged (parts.h).
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "engine/base/text.h"
#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/op_family.h"
#include "engine/ops/split/parts.h"

namespace trainctl {
namespace {

size_t dim_of(const Attrs& attrs, const char* op, const TensorInfo& x) {
  const int64_t dim = attrs.integer("dim");
  if (dim < 0 || dim >= static_cast<int64_t>(x.shape.size()))
    shape_error(fmt::format("{}: there is no dim {} in {}", op, dim, to_string(x)));
  return static_cast<size_t>(dim);
}

/// Checks that the parts of the dim are in order, do not overlap, and lie within the whole.
void expect_parts(const char* op, const SplitParts& parts) {
  const auto& [whole, sizes, offsets] = parts;
  bool fits = offsets.size() == sizes.size();
  int64_t end = 0;
  for (size_t i = 0; fits && i < sizes.size(); ++i) {
    fits = sizes[i] > 0 && offsets[i] >= end && offsets[i] + sizes[i] <= whole;
    end = offsets[i] + sizes[i];
  }
  if (!fits)
    shape_error(fmt::format("{}: parts of {} at {} do not fit into a dim of {}", op, format_list(sizes),
                            format_list(offsets), whole));
}

std::vector<TensorInfo> infer_split(Infos in, const Attrs& attrs) {
  expect_inputs("split", in, 1, 1);
  const size_t dim = dim_of(attrs, "split", in[0]);
  const Ints sizes = attrs.ints("sizes");
  if (!attrs.has("offsets") && std::accumulate(sizes.begin(), sizes.end(), int64_t{0}) != in[0].shape[dim])
    shape_error(
        fmt::format("split: the sum of sizes {} is not dim {} of {}", format_list(sizes), dim, to_string(in[0])));
  expect_parts("split", SplitParts::of(in[0].shape[dim], sizes, attrs.ints("offsets")));
  std::vector<TensorInfo> parts(sizes.size(), in[0]);
  for (size_t i = 0; i < sizes.size(); ++i) parts[i].shape[dim] = sizes[i];
  return parts;
}

Ints sizes_along(Infos parts, size_t dim) {
  Ints sizes;
  for (const TensorInfo& part : parts) sizes.push_back(part.shape[dim]);
  return sizes;
}

std::vector<TensorInfo> infer_concat(Infos in, const Attrs& attrs) {
  expect_inputs("concat", in, 1, kMaxLayerOutputs);
  const size_t dim = dim_of(attrs, "concat", in[0]);
  for (size_t i = 1; i < in.size(); ++i) {
    Shape alike = in[i].shape;
    if (alike.size() == in[0].shape.size()) alike[dim] = in[0].shape[dim];
    if (alike != in[0].shape)
      shape_error(fmt::format("concat: input {} is {}, but input 0 is {}; they may differ only in dim {}", i,
                              to_string(in[i]), to_string(in[0]), dim));
    if (in[i].dtype != in[0].dtype)
      shape_error(
          fmt::format("concat: input {} is {}, but input 0 is {}", i, to_string(in[i].dtype), to_string(in[0].dtype)));
  }
  const Ints sizes = sizes_along(in, dim);
  TensorInfo whole = in[0];
  whole.shape[dim] =
      attrs.has("size") ? attrs.integer("size") : std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  expect_parts("concat", SplitParts::of(whole.shape[dim], sizes, attrs.ints("offsets")));
  return {whole};
}

/// Letters of the sharding rule. The dims of the whole and of its parts share a letter, whose size is the greatest
/// common divisor of their sizes; each size has another letter for the rest, which cannot be cut.
struct PartLetters {
  std::string dims, common, rest;  ///< letters: of all dims; of the one that may be sharded; of those that may not
  int64_t divisor;
  std::map<int64_t, std::string> of_size;
  size_t dim;

  PartLetters(size_t ndim, size_t along, int64_t whole, const Ints& sizes) : divisor(whole), dim(along) {
    dims = letters(ndim);
    common = dims.substr(dim, 1);
    for (const int64_t size : sizes) divisor = std::gcd(divisor, size);
    add(whole);
    for (const int64_t size : sizes) add(size);
  }
  void add(int64_t size) {
    const auto [of, added] = of_size.emplace(size, common);
    if (!added || size == divisor) return;
    rest += letters(dims.size() + rest.size() + 1).back();
    of->second = "(" + common + rest.back() + ")";
  }
  std::string tensor(int64_t size) const { return dims.substr(0, dim) + of_size.at(size) + dims.substr(dim + 1); }
  std::string tensors(const Ints& sizes) const {
    std::vector<std::string> all;
    for (const int64_t size : sizes) all.push_back(tensor(size));
    return join(all, ",");
  }
};

/// The rule of a split (`whole_first`) or concat along dim `dim`, of size `whole`, into parts of these sizes.
RuleText parts_rule(const char* op, size_t ndim, size_t dim, int64_t whole, const Ints& sizes, bool whole_first) {
  const PartLetters l(ndim, dim, whole, sizes);
  const std::string one = l.tensor(whole), many = l.tensors(sizes), parts = format_list(sizes);
  RuleText rule{whole_first ? one + "->" + many : many + "->" + one, l.rest,
                fmt::format("{} has parts of {} along this dim, which no number of ranks divides; use equal parts, "
                            "or parts that are multiples of the number of ranks",
                            op, parts)};
  rule.sizes = {{l.common[0], l.divisor}};
  rule.why_size =
      fmt::format("all parts of {} are cut in the same way, and their greatest common divisor is {}", parts, l.divisor);
  if (l.divisor > 1) rule.inner = l.common;
  return rule;
}

/// With attr whole: the dim and its parts are never cut, and each size has a letter.
RuleText whole_rule(size_t ndim, size_t dim, const Ints& sizes) {
  const std::string dims = letters(ndim);
  std::map<int64_t, char> of_size;
  std::string uncuttable = dims.substr(dim, 1);
  std::vector<std::string> parts;
  for (const int64_t size : sizes) {
    const auto [letter, added] = of_size.try_emplace(size, letters(ndim + of_size.size() + 1).back());
    if (added) uncuttable += letter->second;
    parts.push_back(dims.substr(0, dim) + letter->second + dims.substr(dim + 1));
  }
  return {dims + "->" + join(parts, ","), uncuttable, "split needs the whole dim on one rank"};
}

RuleText split_rule(Infos in, const Attrs& attrs) {
  const auto dim = static_cast<size_t>(attrs.integer("dim"));
  if (attrs.flag("whole")) return whole_rule(in[0].shape.size(), dim, attrs.ints("sizes"));
  return parts_rule("split", in[0].shape.size(), dim, in[0].shape[dim], attrs.ints("sizes"), true);
}

RuleText concat_rule(Infos in, const Attrs& attrs) {
  const auto dim = static_cast<size_t>(attrs.integer("dim"));
  const int64_t whole = infer_concat(in, attrs)[0].shape[dim];
  return parts_rule("concat", in[0].shape.size(), dim, whole, sizes_along(in, dim), false);
}

/// dx = the gradients of the parts joined; zeros for parts that the loss does not depend on.
void split_backward(GradBuilder& g) {
  const Ints sizes = g.attrs().ints("sizes"), offsets = SplitParts::of(0, sizes, g.attrs().ints("offsets")).offsets;
  std::vector<TensorId> given;
  Ints given_offsets;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (!g.has_out_grad(static_cast<int>(i))) continue;
    given.push_back(g.out_grad(static_cast<int>(i)));
    given_offsets.push_back(offsets[i]);
  }
  const int64_t dim = g.attrs().integer("dim");
  Attrs attrs = {{"dim", dim}};
  if (given.size() < sizes.size() || g.attrs().has("offsets")) {
    attrs.set("offsets", given_offsets);
    attrs.set("size", g.shape(g.in(0))[static_cast<size_t>(dim)]);
  }
  g.set_in_grad(0, "concat", given, attrs);
}

/// The gradients of the inputs are parts of dy. Inputs that need no gradient are left out.
void concat_backward(GradBuilder& g) {
  const int64_t dim = g.attrs().integer("dim");
  Ints sizes;
  for (int i = 0; i < g.num_inputs(); ++i) sizes.push_back(g.shape(g.in(i))[static_cast<size_t>(dim)]);
  const Ints offsets = SplitParts::of(0, sizes, g.attrs().ints("offsets")).offsets;
  std::vector<int> which;
  Ints wanted_sizes, wanted_offsets;
  for (int i = 0; i < g.num_inputs(); ++i) {
    if (!g.needs_in_grad(i)) continue;
    which.push_back(i);
    wanted_sizes.push_back(sizes[static_cast<size_t>(i)]);
    wanted_offsets.push_back(offsets[static_cast<size_t>(i)]);
  }
  Attrs attrs = {{"dim", dim}, {"sizes", wanted_sizes}};
  if (wanted_sizes.size() < sizes.size() || g.attrs().has("offsets")) attrs.set("offsets", wanted_offsets);
  g.set_in_grads(which, "split", {g.out_grad()}, attrs);
}

const Attrs& part_places() {
  static const Attrs attrs = {{"offsets", Ints{0}}, {"size", int64_t{1}}};
  return attrs;
}

/// Shape of the block that a rank sends to another; its dim `dim` has the size of that block.
Shape split_block(Infos in, const Attrs& attrs, int64_t parts) {
  const auto dim = static_cast<size_t>(attrs.integer("dim"));
  Shape block = in[0].shape;
  block[dim] = SplitParts::of(block[dim], attrs.ints("sizes"), attrs.ints("offsets")).block(parts);
  return block;
}
Shape concat_block(Infos in, const Attrs& attrs, int64_t parts) {
  const auto dim = static_cast<size_t>(attrs.integer("dim"));
  Shape block = infer_concat(in, attrs)[0].shape;
  block[dim] = SplitParts::of(block[dim], sizes_along(in, dim), attrs.ints("offsets")).block(parts);
  return block;
}

/// The outputs of the examples of pack kernels: [1, ..block], since one rank has all parts.
template <Shape (*block)(Infos, const Attrs&, int64_t)>
std::vector<TensorInfo> packed(Infos in, const Attrs& attrs, DType) {
  Shape shape = block(in, attrs, 1);
  shape.insert(shape.begin(), 1);
  return {{std::move(shape), in[0].dtype}};
}
template <std::vector<TensorInfo> (*infer)(Infos, const Attrs&)>
std::vector<TensorInfo> applied(Infos in, const Attrs& attrs, DType) {
  example::expect(in.size() >= 2, "its last input must be the blocks of all ranks");
  return infer(in.first(in.size() - 1), attrs);
}

const Attrs kThreeParts = {{"dim", int64_t{1}}, {"sizes", Ints{256, 256, 512}}}, kAlongRows = {{"dim", int64_t{1}}};
const Shape kNoBlock = {1, example::kRows, 1};

}  // namespace

extern const KernelDef split_pack_kernel = {
    .name = "split_pack",
    .cost = elementwise_cost<0>,
    .example =
        [] {
          using namespace example;
          return KernelExample{.what = "blocks of the local shard of x that other ranks need, one per rank",
                               .inputs = {{kMatrix}},
                               .attrs = kThreeParts,
                               .optional = {{"offsets", Ints{0, 256, 512}}},
                               .outputs = packed<split_block>};
        },
};

extern const KernelDef split_apply_kernel = {
    .name = "split_apply",
    .cost = elementwise_cost<0>,
    .example =
        [] {
          using namespace example;
          return KernelExample{
              .what = "the local shards of the outputs; inputs: the shard of x and the blocks of all ranks",
              .inputs = {{kMatrix}, {kNoBlock}},
              .attrs = kThreeParts,
              .optional = {{"offsets", Ints{0, 256, 512}}},
              .outputs = applied<infer_split>};
        },
};

extern const KernelDef concat_pack_kernel = {
    .name = "concat_pack",
    .cost = elementwise_cost<0>,
    .example =
        [] {
          using namespace example;
          return KernelExample{.what = "blocks of the local shards of the inputs that other ranks need, one per rank",
                               .inputs = {{kMatrix}, {kMatrix}},
                               .attrs = kAlongRows,
                               .optional = part_places(),
                               .outputs = packed<concat_block>};
        },
};

extern const KernelDef concat_apply_kernel = {
    .name = "concat_apply",
    .cost = elementwise_cost<0>,
    .example =
        [] {
          using namespace example;
          return KernelExample{.what = "the local shard; inputs: the shards of the inputs and the blocks of all ranks",
                               .inputs = {{kMatrix}, {kMatrix}, {kNoBlock}},
                               .attrs = kAlongRows,
                               .optional = part_places(),
                               .outputs = applied<infer_concat>};
        },
};

extern const OpDef split_op = {
    .name = "split",
    .infer = infer_split,
    .rule = split_rule,
    .backward = split_backward,
    .kernel = {.name = "split",
               .channels_last = images_along_dim,
               .cost = elementwise_cost<0>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "parts of x along dim, of the given sizes",
                                          .inputs = {{kMatrix}},
                                          .attrs = kThreeParts,
                                          .optional = {{"offsets", Ints{0, 256, 512}}, {"whole", true}}};
                   }},
    .inner_sum = InnerSum{&split_pack_kernel, nullptr, &split_apply_kernel, 0, split_block},
};

extern const OpDef concat_op = {
    .name = "concat",
    .infer = infer_concat,
    .rule = concat_rule,
    .backward = concat_backward,
    .kernel = {.name = "concat",
               .channels_last = images_along_dim,
               .cost = elementwise_cost<0>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "inputs joined along dim",
                                          .inputs = {{kMatrix}, {kMatrix}},
                                          .attrs = kAlongRows,
                                          .optional = part_places()};
                   }},
    .inner_sum = InnerSum{&concat_pack_kernel, nullptr, &concat_apply_kernel, 0, concat_block},
};

namespace {

Field dim_field() {
  return integer("dim", "The dim to split or concatenate along; -1 is the last.")
      .defaults(int64_t{-1})
      .at_least(-kMaxDims)
      .at_most(kMaxDims);
}

/// A layer sees one micro-batch at a time, so the size of a part of the batch is not what the job says.
void refuse_batch(const LayerContext& layer, size_t dim) {
  for (size_t i = 0; i < layer.inputs.size(); ++i)
    if (layer.batch(static_cast<int>(i)).is_sized(dim))
      throw ShapeError(
          fmt::format("{}: dim {} of {} depends on the batch, of which a layer processes only one micro-batch at a "
                      "time",
                      layer.def.name, dim, to_string(layer.shape(static_cast<int>(i)))),
          "dim");
}

std::vector<FieldFault> split_faults(const Attrs& attrs) {
  const bool parts = attrs.has("parts"), sizes = attrs.has("sizes");
  if (parts && sizes) return {{"sizes", "split needs either 'parts' or 'sizes', not both", "remove one of them"}};
  if (!parts && !sizes) return {{"type", "split needs 'parts' or 'sizes'", "e.g. parts: 3, or sizes: [768, 64, 64]"}};
  if (!sizes) return {};
  const size_t count = attrs.ints("sizes").size();
  if (count < 2) return {{"sizes", fmt::format("split needs at least 2 sizes, not {}", count), ""}};
  if (count > static_cast<size_t>(kMaxLayerOutputs))
    return {{"sizes", fmt::format("split supports at most {} parts, not {}", kMaxLayerOutputs, count), ""}};
  return {};
}

int count_parts(const Attrs& attrs) {
  const auto count = attrs.has("sizes") ? static_cast<int64_t>(attrs.ints("sizes").size()) : attrs.integer("parts", 1);
  return static_cast<int>(std::clamp<int64_t>(count, 1, kMaxLayerOutputs));
}

/// Emits the layer split, whose field `sizes` or number of parts gives the sizes of its outputs.
LayerOutputs emit_split(LayerContext& layer) {
  const int64_t dim = layer.non_negative_dim(layer.attrs.integer("dim"));
  refuse_batch(layer, static_cast<size_t>(dim));
  const int64_t whole = layer.shape()[static_cast<size_t>(dim)];
  Ints sizes;
  if (layer.attrs.has("sizes")) {
    sizes = layer.attrs.ints("sizes");
  } else {
    const int64_t parts = layer.attrs.integer("parts");
    if (whole % parts != 0)
      throw ShapeError(fmt::format("split: dim {} of {} cannot be divided into {} equal parts", dim,
                                   to_string(layer.shape()), parts),
                       "parts");
    sizes.assign(static_cast<size_t>(parts), whole / parts);
  }
  return layer.emit_all("split", {{"dim", dim}, {"sizes", sizes}});
}

}  // namespace

extern const LayerDef split_layer = {
    .name = "split",
    .doc = "Splits the input along one dim into `parts` equal parts or into parts of `sizes`; each part is an output.",
    .fields = {integer("parts", "Number of equal parts.").at_least(2).at_most(kMaxLayerOutputs),
               ints("sizes", "Size of each part, in place of parts.").at_least(1).at_most(kMaxSize), dim_field()},
    .faults = split_faults,
    .num_outputs = count_parts,
    .emit = emit_split,
};

extern const LayerDef concat_layer = {
    .name = "concat",
    .doc = "Concatenates the inputs along one dim.",
    .fields = {dim_field()},
    .min_inputs = 2,
    .max_inputs = kMaxLayerOutputs,
    .emit =
        [](LayerContext& layer) {
          const int64_t dim = layer.non_negative_dim(layer.attrs.integer("dim"));
          refuse_batch(layer, static_cast<size_t>(dim));
          return layer.emit("concat", {{"dim", dim}});
        },
};

extern const OpFamily split_family = {
    .ops = {&split_op, &concat_op},
    .kernels = {&split_pack_kernel, &split_apply_kernel, &concat_pack_kernel, &concat_apply_kernel},
    .layers = {&split_layer, &concat_layer}};

}  // namespace trainctl
