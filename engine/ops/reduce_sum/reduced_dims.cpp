// Attrs dims and keep_dims of reductions: the shapes, rules and fields that all of them share.
#include "engine/ops/reduce_sum/reduced_dims.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/text.h"
#include "engine/ops/expect.h"

namespace trainctl {
namespace {

bool is_reduced(const Ints& dims, size_t dim) {
  return std::find(dims.begin(), dims.end(), static_cast<int64_t>(dim)) != dims.end();
}

}  // namespace

Shape reduced_shape(const Shape& shape, const Ints& dims, bool keep_dims) {
  Shape out;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (!is_reduced(dims, d)) out.push_back(shape[d]);
    if (is_reduced(dims, d) && keep_dims) out.push_back(1);
  }
  return out.empty() ? Shape{1} : out;
}

std::vector<TensorInfo> infer_reduction(std::string_view op, Infos in, const Attrs& attrs) {
  expect_inputs(op, in, 1, 1);
  expect_floats(op, in);
  const Ints dims = attrs.ints("dims");
  for (size_t i = 0; i < dims.size(); ++i) {
    const bool exists = dims[i] >= 0 && dims[i] < static_cast<int64_t>(in[0].shape.size());
    const bool again = std::find(dims.begin(), dims.begin() + i, dims[i]) != dims.begin() + i;
    if (exists && !again) continue;
    shape_error(fmt::format("{}: dims {} must be distinct dims of {}", op, format_list(dims), to_string(in[0])));
  }
  return {{reduced_shape(in[0].shape, dims, attrs.flag("keep_dims")), in[0].dtype}};
}

std::string reduction_rule(Infos in, const Attrs& attrs) {
  const Ints reduced = attrs.ints("dims");
  const std::string dims = letters(in[0].shape.size());
  std::string out;
  for (size_t d = 0; d < dims.size(); ++d) {
    if (!is_reduced(reduced, d)) out += dims[d];
    if (is_reduced(reduced, d) && attrs.flag("keep_dims")) out += "()";
  }
  return dims + "->" + (out.empty() ? "()" : out);
}

std::string reduced_letters(Infos in, const Attrs& attrs) {
  const Ints reduced = attrs.ints("dims");
  const std::string dims = letters(in[0].shape.size());
  std::string out;
  for (size_t d = 0; d < dims.size(); ++d)
    if (is_reduced(reduced, d)) out += dims[d];
  return out;
}

std::vector<Field> reduction_fields() {
  return {ints("dims", "Dims to reduce; negative numbers count from the last dim.").required(),
          flag("keep_dims", false, "Keep the reduced dims with size 1.")};
}

Ints reduced_dims(const LayerContext& layer) {
  Ints dims = layer.attrs.ints("dims");
  for (int64_t& dim : dims) dim = layer.non_negative_dim(dim);
  return dims;
}

}  // namespace trainctl
