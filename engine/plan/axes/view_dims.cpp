// Finds for each dim of a tensor the dim of its view that the same cut divides.
#include "engine/plan/axes/view_dims.h"

#include <map>

namespace trainctl {
namespace {

/// The dims that have one product of sizes before them: those of size 1, then at most one larger dim (-1: none).
struct AlignedDims {
  std::vector<int> of_one;
  int larger = -1;
};

std::map<int64_t, AlignedDims> dims_by_product_before(const Shape& shape) {
  std::map<int64_t, AlignedDims> dims;
  int64_t before = 1;
  for (size_t d = 0; d < shape.size(); before *= shape[d++]) {
    AlignedDims& here = dims[before];
    if (shape[d] == 1)
      here.of_one.push_back(static_cast<int>(d));
    else
      here.larger = static_cast<int>(d);
  }
  return dims;
}

int64_t product_before(const Shape& shape, int dim) { return num_elements(Shape(shape.begin(), shape.begin() + dim)); }

bool begins_with_rows(const BatchRows& batch) { return batch.dim >= 0 && batch.outer == 1; }

}  // namespace

std::vector<int> dims_through_view(const Shape& from, const Shape& to) {
  std::vector<int> leads(from.size(), -1);
  const std::map<int64_t, AlignedDims> of_view = dims_by_product_before(to);
  for (const auto& [before, dims] : dims_by_product_before(from)) {
    const auto found = of_view.find(before);
    if (found == of_view.end()) continue;
    const AlignedDims& there = found->second;
    if (dims.larger >= 0) leads[static_cast<size_t>(dims.larger)] = there.larger;
    for (size_t k = 0; k < dims.of_one.size(); ++k) {
      int& lead = leads[static_cast<size_t>(dims.of_one[k])];
      lead = k < there.of_one.size() ? there.of_one[k] : there.larger;
      if (lead < 0 && !there.of_one.empty()) lead = there.of_one.back();
    }
  }
  return leads;
}

std::vector<int> dims_through_view(const Tensor& from, const Tensor& to) {
  std::vector<int> leads = dims_through_view(from.shape, to.shape);
  if (!begins_with_rows(from.batch) || !begins_with_rows(to.batch)) return leads;
  if (product_before(from.shape, from.batch.dim) == product_before(to.shape, to.batch.dim))
    leads[static_cast<size_t>(from.batch.dim)] = to.batch.dim;
  return leads;
}

}  // namespace trainctl
