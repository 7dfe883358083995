// Cases of class_targets: its kernels in double precision, and the shapes, sharding rules, gradients and errors to
// expect.
#include <utility>

#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

Outputs class_targets(const Inputs& in, const Attrs& attrs) {
  const std::vector<double>& weights = attrs.numbers("class_weights");
  const double e = attrs.number("label_smoothing", 0);
  const auto classes = static_cast<double>(in[0].shape.back());
  return {make(in[0].shape, [&](const Index& i) {
    const auto label = static_cast<int64_t>(at(in[1], Index(i.begin(), i.end() - 1)));
    if (attrs.has("ignore_index") && label == attrs.integer("ignore_index")) return 0.0;
    return weights[static_cast<size_t>(i.back())] * ((label == i.back() ? 1 - e : 0) + e / classes);
  })};
}

/// The prediction, of which the op uses only the shape.
CaseInput logits_of_targets(Shape shape) { return {.shape = std::move(shape), .differentiable = false}; }

Attrs weights_of(int64_t classes, double smoothing) {
  std::vector<double> weights;
  for (int64_t c = 0; c < classes; ++c) weights.push_back(0.5 + 0.25 * static_cast<double>(c));
  return {{"class_weights", weights}, {"label_smoothing", smoothing}};
}

Attrs with_ignored(Attrs attrs) {
  attrs.set("ignore_index", int64_t{1});
  return attrs;
}

}  // namespace

extern const OpCases class_targets_cases = {
    .rows = {{"class_targets", {logits_of_targets({6, 5}), ids({6}, 5)}, weights_of(5, 0), {{6, 5}}},
             {"class_targets", {logits_of_targets({4, 6, 3}), ids({4, 6}, 3)}, weights_of(3, 0.2), {{4, 6, 3}}},
             {"class_targets", {logits_of_targets({8, 3}), ids({8}, 3)}, with_ignored(weights_of(3, 0)), {{8, 3}}}},
    .references = {{"class_targets", class_targets}},
    .rules = {{{"class_targets", {{{2, 3}}, {{2}, DType::i32}}, weights_of(3, 0)}, "ac,a->ac", "c", {{2, 3}}}},
    .shape_errors = {{{"class_targets", {{{2, 3}}, {{2}, DType::i32}}, weights_of(2, 0)},
                      "there are 2 weights, but the prediction [2, 3] has 3 classes"}},
};

}  // namespace trainctl
