// slice: y = the elements of x from attr begin on, attr size of them, in each dim. pad: y = x with attr before and
// after elements of attr value around it. Each is the gradient of the other.
//
// Both are products with a matrix that selects: y[o] = sum over i of S[o, i] x[i]. So a changed dim has one letter in x
// and another in y, and both may be cut. A rank moves what its part of x has of its part of y and leaves 0 elsewhere;
// where x is cut, y is the sum of the ranks, which for a slice moves less than x whole would. Integers and paddings
// other than 0 cannot be summed, so their x is whole.
#include <fmt/format.h>

#include <algorithm>

#include "engine/base/text.h"
#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/op_family.h"
#include "engine/ops/reindex/pad_beyond.h"

namespace trainctl {
namespace {

/// The rule: each dim of x has a letter. A dim of y has the same letter as in x or, if the sizes differ, a letter of
/// its own. `why_whole`: the reason why ranks cannot sum parts of y; empty if they can.
RuleText selection_rule(const TensorInfo& x, const Shape& y, const std::string& why_whole) {
  const std::string from = letters(x.shape.size()), own = letters(2 * x.shape.size()).substr(x.shape.size());
  std::string to = from, changed;
  for (size_t d = 0; d < from.size(); ++d) {
    if (x.shape[d] == y[d]) continue;
    changed += from[d];
    to[d] = own[d];
  }
  if (why_whole.empty()) return {from + "->" + to};
  return {from + "->" + to, changed, why_whole};
}

std::vector<TensorInfo> infer_slice(Infos in, const Attrs& attrs) {
  expect_inputs("slice", in, 1, 1);
  const Ints begin = attrs.ints("begin"), size = attrs.ints("size");
  const Shape& x = in[0].shape;
  bool fits = begin.size() == x.size() && size.size() == x.size();
  for (size_t d = 0; fits && d < x.size(); ++d)
    fits = begin[d] >= 0 && size[d] >= 1 && begin[d] <= x[d] && size[d] <= x[d] - begin[d];
  if (!fits) {
    shape_error(fmt::format("slice: begin {} and size {} are out of range for {}", format_list(begin),
                            format_list(size), to_string(in[0])));
  }
  return {{size, in[0].dtype}};
}

/// Checks the attrs of a padding, and returns the padded shape.
std::vector<TensorInfo> infer_pad(Infos in, const Attrs& attrs) {
  expect_inputs("pad", in, 1, 1);
  expect_floats("pad", in);
  const Ints before = attrs.ints("before"), after = attrs.ints("after");
  TensorInfo out = in[0];
  bool fits = before.size() == out.shape.size() && after.size() == out.shape.size();
  for (size_t d = 0; fits && d < out.shape.size(); ++d) {
    fits = before[d] >= 0 && after[d] >= 0 && before[d] <= kMaxElements && after[d] <= kMaxElements;
    if (fits) out.shape[d] += before[d] + after[d];
  }
  if (!fits) {
    shape_error(fmt::format("pad: before {} and after {} must be numbers of elements for each dim of {}",
                            format_list(before), format_list(after), to_string(in[0])));
  }
  return {out};
}

/// Returns the position from the start; negative ones count from the end.
int64_t from_end(int64_t place, int64_t size) { return place < 0 ? place + size : place; }

TensorId emit_slice(LayerContext& layer) {
  const int64_t dim = layer.sample_dim(layer.attrs.integer("dim"));
  const int64_t size = layer.shape()[dim];
  const int64_t begin = from_end(layer.attrs.integer("begin"), size);
  const int64_t end = layer.attrs.has("end") ? from_end(layer.attrs.integer("end"), size) : size;
  if (begin < 0 || begin >= end || end > size) {
    shape_error(fmt::format("elements {} to {} are out of range for dim {} of its input {}, which has {}", begin, end,
                            dim, to_string(layer.shape()), size));
  }
  Ints begins(layer.shape().size()), sizes = layer.shape();
  begins[dim] = begin;
  sizes[dim] = end - begin;
  return layer.emit("slice", {{"begin", begins}, {"size", sizes}});
}

std::vector<FieldFault> pad_faults(const Attrs& attrs) {
  std::vector<FieldFault> faults;
  const size_t dims = attrs.ints("dims").size();
  for (const char* side : {"before", "after"}) {
    const size_t given = attrs.ints(side).size();
    if (given != 0 && given != dims)
      faults.push_back({side, fmt::format("{} numbers for {} dims; expected one for each of 'dims'", given, dims), ""});
  }
  if (attrs.text("mode") != "constant" && attrs.number("value", 0) != 0)
    faults.push_back({"value", "has no effect with mode: " + attrs.text("mode"), "remove it, or set mode: constant"});
  return faults;
}

/// Emits a padding by elements of the input, one dim after the other.
TensorId pad_with_input(LayerContext& layer, const Ints& before, const Ints& after, const std::string& mode) {
  std::vector<int64_t> dims;
  for (size_t d = 0; d < before.size(); ++d)
    if (before[d] + after[d] > 0) dims.push_back(static_cast<int64_t>(d));
  if (dims.empty())
    shape_error("this pad adds nothing; give the number of elements before or after a dim, or remove it");
  TensorId x = layer.inputs[0];
  for (const int64_t dim : dims) {
    const auto d = static_cast<size_t>(dim);
    x = emit_reindex(layer.builder, x, {dim, before[d], after[d], mode, before[d] >= after[d] ? "before" : "after"},
                     dim == dims.back() ? "" : "dim" + std::to_string(dim));
  }
  return x;
}

TensorId emit_pad(LayerContext& layer) {
  const Ints dims = layer.attrs.ints("dims");
  const std::string mode = layer.attrs.text("mode");
  Attrs attrs{{"value", layer.attrs.number("value")}};
  for (const char* side : {"before", "after"}) {
    const Ints given = layer.attrs.ints(side);
    Ints of_dims(layer.shape().size());
    for (size_t i = 0; i < given.size(); ++i) of_dims[layer.sample_dim(dims[i])] += given[i];
    attrs.set(side, of_dims);
  }
  if (mode != "constant") return pad_with_input(layer, attrs.ints("before"), attrs.ints("after"), mode);
  return layer.emit("pad", attrs);
}

}  // namespace

extern const OpDef slice_op = {
    .name = "slice",
    .infer = infer_slice,
    .rule =
        [](Infos in, const Attrs& attrs) {
          const bool sums = in[0].dtype != DType::i32;
          return selection_rule(in[0], attrs.ints("size"),
                                sums ? ""
                                     : "slice needs this dim of integers on one rank, because ranks do not sum "
                                       "integers");
        },
    .backward =
        [](GradBuilder& g) {
          const Ints begin = g.attrs().ints("begin"), size = g.attrs().ints("size");
          Ints after = g.shape(g.in(0));
          for (size_t d = 0; d < after.size(); ++d) after[d] -= begin[d] + size[d];
          g.set_in_grad(0, "pad", {g.out_grad()}, {{"before", begin}, {"after", after}, {"value", 0.0}});
        },
    // The cost counts only the part of x that is read.
    .kernel = {.name = "slice",
               .cost = [](Infos, Infos out,
                          const Attrs&) { return Cost{.bytes = 2.0 * static_cast<double>(bytes_of(out[0]))}; },
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "y = a part of x",
                                          .inputs = {{kMatrix}},
                                          .attrs = {{"begin", Ints{0, 256}}, {"size", Ints{kRows, 512}}}};
                   }},
    .attrs_name_places = true,
};

extern const OpDef pad_op = {
    .name = "pad",
    .infer = infer_pad,
    .rule =
        [](Infos in, const Attrs& attrs) {
          const bool sums = attrs.number("value") == 0;
          return selection_rule(in[0], infer_pad(in, attrs)[0].shape,
                                sums ? ""
                                     : "pad needs this dim on one rank, because the padding value would be summed "
                                       "over ranks with shards of it");
        },
    .backward =
        [](GradBuilder& g) {
          g.set_in_grad(0, "slice", {g.out_grad()}, {{"begin", g.attrs().ints("before")}, {"size", g.shape(g.in(0))}});
        },
    .kernel = {.name = "pad",
               .cost = elementwise_cost<0>,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "y = x padded with a constant value",
                                          .inputs = {{kMatrix}},
                                          .attrs = {{"before", Ints{0, 512}}, {"after", Ints{0, 512}}, {"value", 0.0}}};
                   }},
    .attrs_name_places = true,
};

extern const LayerDef slice_layer = {
    .name = "slice",
    .doc = "Selects the elements begin to end - 1 of a dim.",
    .fields =
        {integer("dim", "The dim, other than the batch dim; -1 is the last.").required(),
         integer("begin", "Index of the first element; negative numbers count from the end.").defaults(int64_t{0}),
         integer("end",
                 "Index after the last element; negative numbers count from the end. If omitted, all remaining "
                 "elements are selected.")},
    .emit = emit_slice,
};

extern const LayerDef pad_layer = {
    .name = "pad",
    .doc = "Pads the input with a constant value or with its own elements.",
    .fields =
        {ints("dims", "Dims to pad, other than the batch dim; -1 is the last.").required(),
         ints("before", "Number of elements to add before each of these dims. If omitted, none.")
             .at_least(0)
             .at_most(kMaxSize),
         ints("after", "Number of elements to add after each of these dims. If omitted, none.")
             .at_least(0)
             .at_most(kMaxSize),
         text("mode",
              "Values of the added elements. constant: `value`; reflect: the input mirrored at each end, without "
              "repeating the end; replicate: the value at the same end; circular: the values from the opposite end.")
             .one_of({"constant", "reflect", "replicate", "circular"})
             .defaults(std::string("constant")),
         number("value", "With mode: constant, the value of the added elements.").defaults(0.0)},
    .faults = pad_faults,
    .emit = emit_pad,
};

extern const OpFamily slice_family = {.ops = {&slice_op, &pad_op}, .layers = {&slice_layer, &pad_layer}};

}  // namespace trainctl
