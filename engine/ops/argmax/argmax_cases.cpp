// Cases of argmax: its kernels in double precision, and the shapes, sharding rules and errors to expect.
#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

/// The index of the first largest element along the dim.
Outputs argmax(const Inputs& in, const Attrs& attrs) {
  const auto dim = static_cast<size_t>(attrs.integer("dim"));
  Shape shape = in[0].shape;
  shape[dim] = 1;
  Tensor64 y = make(shape, [&](Index i) {
    Index best = i;
    for (int64_t k = 1; k < in[0].shape[dim]; ++k) {
      i[dim] = k;
      if (at(in[0], i) > at(in[0], best)) best = i;
    }
    return static_cast<double>(best[dim]);
  });
  if (!attrs.flag("keep_dims") && shape.size() > 1) y.shape.erase(y.shape.begin() + static_cast<std::ptrdiff_t>(dim));
  return {y};
}

Attrs largest_along(int64_t dim, bool keep = false) { return {{"dim", dim}, {"keep_dims", keep}}; }

CaseInput scores(Shape shape) { return {.shape = std::move(shape), .differentiable = false, .distinct = true}; }

}  // namespace

extern const OpCases argmax_cases = {
    .rows = {{"argmax", {scores({6, 4})}, largest_along(1), {{6}}},
             {"argmax", {scores({4, 37})}, largest_along(1, true), {{4, 1}}},
             {"argmax", {scores({6, 5, 4})}, largest_along(1), {{6, 4}}},
             {"argmax", {scores({2, 3, 2, 61})}, largest_along(2, true), {{2, 3, 1, 61}}},
             {"argmax", {scores({13})}, largest_along(0), {{1}}}},
    .references = {{"argmax", argmax}},
    .rules = {{{"argmax", {{{2, 3, 4}}}, largest_along(1)}, "abc->ac", "b", {{2, 4}}}},
    .shape_errors = {{{"argmax", {{{2, 3}}}, largest_along(2)}, "argmax: dims [2] must be distinct dims of [2, 3]"}},
    // The result is read by a layer through which gradients flow.
    .layers = {{"argmax",
                ", inputs: [first]}\n  - {name: hot, type: one_hot, classes: 12, inputs: [layer]}\n"
                "  - {name: kept, type: mul, inputs: [hot, first]",
                {8, 12},
                false,
                {},
                "kept"}},
};

}  // namespace trainctl
