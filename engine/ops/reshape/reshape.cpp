// y = x in another shape, with the same elements in row-major order. Sharding: both shapes are split into common
// digits, [n, 12] -> [n, 3, 4] is "n(ab)->nab", so that a cut of n or a remains a plain copy.
#include <fmt/format.h>

#include <algorithm>

#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/op_family.h"

namespace trainctl {
namespace {

constexpr const char* kReshapeNeedsWholeDims =
    "reshape keeps this index on one rank: only the outermost factor of a "
    "dim can be cut";

/// The letters of the input or of the output in the rule: one string per dim.
using Side = std::vector<std::string>;

struct Digits {
  Side in, out;
  std::string uncuttable;
};

struct Range {
  size_t begin, end;
};

/// Assigns letters to the digits that two runs of dims with equally many elements have in common. Returns false if
/// there are none ([6, 4] -> [8, 3]): each side then gets its own letters.
bool share_digits(const Shape& in, Range i, const Shape& out, Range o, Digits& digits, char& next) {
  int64_t left_in = 1, left_out = 1;
  size_t at_in = i.begin, at_out = o.begin;
  while (true) {
    while (left_in == 1 && at_in < i.end) left_in = in[at_in++];
    while (left_out == 1 && at_out < o.end) left_out = out[at_out++];
    if (left_in == 1 && left_out == 1) return true;
    const int64_t size = std::min(left_in, left_out);
    if (size == 1 || left_in % size != 0 || left_out % size != 0) return false;
    std::string& in_dim = digits.in[at_in - 1];
    std::string& out_dim = digits.out[at_out - 1];
    // A digit that is not the first of its dim cannot be cut alone.
    if (!in_dim.empty() || !out_dim.empty()) digits.uncuttable += next;
    in_dim += next;
    out_dim += next++;
    left_in /= size;
    left_out /= size;
  }
}

void own_letters(const Shape& shape, Range range, Side& side, std::string& uncuttable, char& next) {
  for (size_t d = range.begin; d < range.end; ++d) {
    side[d].clear();
    if (shape[d] == 1) continue;
    uncuttable += next;
    side[d] += next++;
  }
}

/// Splits both shapes where their leading products agree, and finds the digits of each run.
Digits find_digits(const Shape& in, const Shape& out) {
  Digits digits{Side(in.size()), Side(out.size()), ""};
  char next = 'a';
  size_t i = 0, o = 0;
  while (i < in.size() || o < out.size()) {
    const Range run_in{i, i}, run_out{o, o};
    int64_t product_in = 1, product_out = 1;
    do {
      if (product_in <= product_out && i < in.size()) {
        product_in *= in[i++];
      } else if (o < out.size()) {
        product_out *= out[o++];
      } else {
        product_in *= in[i++];
      }
    } while (product_in != product_out);
    const Range from{run_in.begin, i}, to{run_out.begin, o};
    const Digits before = digits;
    const char first = next;
    if (share_digits(in, from, out, to, digits, next)) continue;
    digits = before;
    next = first;
    own_letters(in, from, digits.in, digits.uncuttable, next);
    own_letters(out, to, digits.out, digits.uncuttable, next);
  }
  return digits;
}

std::string side_text(const Side& side) {
  std::string text;
  for (const std::string& dim : side) text += dim.size() == 1 ? dim : "(" + dim + ")";
  return text;
}

std::vector<FieldFault> shape_faults(const Attrs& attrs) {
  std::vector<FieldFault> faults;
  const Shape shape = attrs.ints("shape");
  const auto unknown = std::count(shape.begin(), shape.end(), -1);
  if (std::count(shape.begin(), shape.end(), 0) > 0) faults.push_back({"shape", "a dim cannot have size 0", ""});
  if (unknown > 1) faults.push_back({"shape", fmt::format("only one dim can be -1, not {}", unknown), ""});
  return faults;
}

/// The layer's field shape, with the batch dim in front and the -1 computed.
Shape whole_shape(const LayerContext& layer) {
  const Shape& in = layer.shape();
  Shape out = layer.attrs.ints("shape");
  int64_t known = 1, unknown = 0;
  const int64_t sample = num_elements(in) / in[0];
  for (int64_t size : out) {
    if (size == -1) ++unknown;
    if (size != -1) known = size > 0 && known <= sample / size ? known * size : sample + 1;
  }
  const bool fits = unknown == 0 ? known == sample : unknown == 1 && known > 0 && sample % known == 0;
  if (!fits) {
    shape_error(fmt::format("a sample of {} has {} elements, which do not fit shape {}",
                            to_string(Shape(in.begin() + 1, in.end())), sample, to_string(out)));
  }
  for (int64_t& size : out) {
    if (size == -1) size = sample / known;
  }
  out.insert(out.begin(), in[0]);
  return out;
}

}  // namespace

extern const OpDef reshape_op = {
    .name = "reshape",
    .infer = [](Infos in, const Attrs& attrs) -> std::vector<TensorInfo> {
      expect_inputs("reshape", in, 1, 1);
      const Shape shape = attrs.ints("shape");
      if (num_elements(shape) != num_elements(in[0].shape)) {
        shape_error(fmt::format("reshape: {} has {} elements, {} has {}", to_string(in[0]), num_elements(in[0].shape),
                                to_string(shape), num_elements(shape)));
      }
      return {{shape, in[0].dtype}};
    },
    .rule = [](Infos in, const Attrs& attrs) -> RuleText {
      const Digits digits = find_digits(in[0].shape, attrs.ints("shape"));
      return {side_text(digits.in) + "->" + side_text(digits.out), digits.uncuttable, kReshapeNeedsWholeDims};
    },
    .backward =
        [](GradBuilder& g) {
          g.set_in_grad(0, "reshape", {g.out_grad()}, {{"shape", g.shape(g.in(0))}});
        },
    .kernel = {.name = "reshape",
               .in_place = InPlace::first_on_first,
               .cost = elementwise_cost<0>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{
                         .what = "y = x in another shape", .inputs = {{kMatrix}}, .attrs = {{"shape", kFlat}}};
                   }},
    .is_view = true,
};

extern const LayerDef flatten_layer = {
    .name = "flatten",
    .doc = "Merges all dims except the batch dim into one.",
    .emit =
        [](LayerContext& layer) {
          const Shape& in = layer.shape();
          return layer.emit("reshape", {{"shape", Shape{in[0], num_elements(in) / in[0]}}});
        },
};

extern const LayerDef reshape_layer = {
    .name = "reshape",
    .doc = "Changes the shape without changing the elements.",
    .fields = {ints(
                   "shape",
                   "Shape of one sample, without the batch dim. One dim can be -1, in which case its size is inferred.")
                   .required()
                   .at_least(-1)
                   .at_most(kMaxSize)},
    .faults = shape_faults,
    .emit =
        [](LayerContext& layer) {
          return layer.emit("reshape", {{"shape", whole_shape(layer)}});
        },
};

extern const LayerDef squeeze_layer = {
    .name = "squeeze",
    .doc = "Removes a dim of size 1.",
    .fields = {integer("dim", "The dim to remove, other than the batch dim; -1 is the last.").required()},
    .emit =
        [](LayerContext& layer) {
          const int64_t dim = layer.sample_dim(layer.attrs.integer("dim"));
          Shape shape = layer.shape();
          if (shape[dim] != 1) {
            shape_error(fmt::format("dim {} of its input {} has size {}, but only a dim of size 1 can be removed", dim,
                                    to_string(shape), shape[dim]));
          }
          shape.erase(shape.begin() + dim);
          return layer.emit("reshape", {{"shape", shape}});
        },
};

extern const LayerDef unsqueeze_layer = {
    .name = "unsqueeze",
    .doc = "Inserts a dim of size 1.",
    .fields =
        {integer("dim", "Position of the new dim in the output, after the batch dim; -1 is the last.").required()},
    .emit =
        [](LayerContext& layer) {
          Shape shape = layer.shape();
          const auto ndim = static_cast<int64_t>(shape.size());
          const int64_t given = layer.attrs.integer("dim"), dim = given < 0 ? given + ndim + 1 : given;
          if (dim < 1 || dim > ndim) {
            shape_error(fmt::format("a new dim of its input {} can be at position 1 to {} or -1 to {}, not at {}",
                                    to_string(shape), ndim, -ndim, given));
          }
          shape.insert(shape.begin() + dim, 1);
          return layer.emit("reshape", {{"shape", shape}});
        },
};

extern const OpFamily reshape_family = {.ops = {&reshape_op},
                                        .layers = {&flatten_layer, &reshape_layer, &squeeze_layer, &unsqueeze_layer}};

}  // namespace trainctl
