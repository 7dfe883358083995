// The memory of a rank that holds only some experts of a mixture is bounded.
#include <doctest/doctest.h>

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
        "moe: the router sends 9 rows to experts 2 to 2, but this rank has memory for 8\n  increase the layer's "
        "capacity, "
        "or cut the experts over fewer ranks");
}

}  // namespace trainctl
