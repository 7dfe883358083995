// Properties of the kernels of a mixture of experts that a comparison within a tolerance does not show: the bound of a
// rank's memory, and gradients that are exactly 0.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/ops/kernel.h"

namespace trainctl {
namespace {

struct CapacityOperand {
  std::vector<float> values;
  TensorArg arg;

  CapacityOperand(const Shape& shape, const Shape& global, const Shape& offset)
      : values(static_cast<size_t>(num_elements(shape)), 0.5f) {
    arg = {.data = values.data(), .shape = shape, .global_shape = global, .offset = offset};
  }
  explicit CapacityOperand(const Shape& shape) : CapacityOperand(shape, shape, Shape(shape.size(), 0)) {}
};

/// Runs experts on a rank with expert 2 of 4, whose capacity is 8 rows: 8 tokens choose 2 experts each.
std::string error_of(std::vector<int32_t> ids) {
  CapacityOperand x({8, 3}), weights({8, 2}), up({1, 1, 4, 3}, {4, 1, 4, 3}, {2, 0, 0, 0}),
      down({1, 3, 4}, {4, 3, 4}, {2, 0, 0}), y({8, 3}), kept({8, 1, 4, 1});
  TensorArg chosen{.data = ids.data(), .dtype = DType::i32, .shape = {8, 2}, .global_shape = {8, 2}, .offset = {0, 0}};
  KernelCall call{
      .in = {x.arg, weights.arg, chosen, up.arg, down.arg},
      .out = {y.arg, kept.arg},
      .attrs = {{"experts", int64_t{4}}, {"function", std::string("relu")}, {"capacity", 1.0}, {"block", int64_t{1}}}};
  try {
    find_cpu_kernel("experts")->prepare(call)();
  } catch (const EnvError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a rank whose experts receive more rows than it has memory for ends with an error that names them") {
  const std::vector<int32_t> half{2, 0, 2, 0, 2, 0, 2, 0, 2, 1, 2, 1, 2, 1, 2, 3};
  std::vector<int32_t> one_more = half;
  one_more[1] = 2;
  CHECK(error_of(half).empty());
  CHECK(error_of(one_more) ==
        "moe: the router sends 9 rows to expert 2, but this rank has memory for 8\n  increase the layer's "
        "capacity, "
        "or cut the experts over fewer ranks");
}

TEST_CASE("the gradient of a router is exactly 0 if each token has one expert, whose weight is normalized") {
  CapacityOperand dweights({3, 1}), logits({3, 5}), dlogits({3, 5});
  dweights.values = {0.37f, -1.3f, 7.1f};
  logits.values = {0.1f, 1.7f, -0.3f, 0.2f, 0.9f, 2.3f, 0.7f, -1.1f, 0.4f, 0.6f, -0.2f, 0.3f, 1.9f, 0.8f, 1.2f};
  std::vector<int32_t> ids = {1, 0, 2};
  const TensorArg chosen{
      .data = ids.data(), .dtype = DType::i32, .shape = {3, 1}, .global_shape = {3, 1}, .offset = {0, 0}};
  for (const char* const score : {"softmax", "sigmoid"}) {
    KernelCall call{.in = {dweights.arg, logits.arg, chosen},
                    .out = {dlogits.arg},
                    .attrs = {{"top_k", int64_t{1}}, {"score", std::string(score)}, {"normalize", true}}};
    find_cpu_kernel("route_grad")->prepare(call)();
    CHECK(std::ranges::all_of(dlogits.values, [](float v) { return v == 0; }));
  }
}

}  // namespace trainctl
