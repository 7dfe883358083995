// What the user sees, as text.
#include <doctest/doctest.h>

#include <vector>

#include "cli/render/progress.h"
#include "cli/render/tensor_text.h"

using namespace trainctl;

namespace {

std::string floats(const std::vector<float>& values, const Shape& shape, int indent = 0) {
  return tensor_text(values.data(), shape, DType::f32, indent);
}

}  // namespace

TEST_CASE("tensors look as numpy prints them") {
  CHECK(floats({1, 1, 1, 1}, {2, 2}) == "[[1. 1.]\n [1. 1.]]");
  CHECK(floats({1, 1, 1, 1}, {2, 2}, 3) == "[[1. 1.]\n    [1. 1.]]");
  CHECK(floats({1, 2.5, -3, 0.1f}, {4}) == "[ 1.   2.5 -3.   0.1]");
  CHECK(floats({1, 2, 3, 4}, {2, 1, 2}) == "[[[1. 2.]]\n\n [[3. 4.]]]");
  CHECK(floats({1e-10f, 1}, {2}) == "[1.e-10 1.e+00]");
  CHECK(floats({0}, {1}) == "[0.]");
  CHECK(floats({7}, {}) == "7.");
  const std::vector<int32_t> integers = {1, -20, 3};
  CHECK(tensor_text(integers.data(), {3}, DType::i32) == "[  1 -20   3]");
}

TEST_CASE("large tensors show their ends") {
  const std::vector<float> ones(2000, 1.0f);
  CHECK(floats(ones, {2000}) == "[1. 1. 1. ... 1. 1. 1.]");
  CHECK(floats(ones, {2, 1000}) == "[[1. 1. 1. ... 1. 1. 1.]\n [1. 1. 1. ... 1. 1. 1.]]");
  CHECK(floats(std::vector<float>(1000, 1.0f), {1000}).size() == 2 + 3000 - 1);
}

TEST_CASE("a tensor that has no elements is an empty list") { CHECK(floats({}, {0}) == "[]"); }

TEST_CASE("the progress line says how far a run is") {
  ProgressState state;
  CHECK(progress_text(state) == "starting");
  state = {.epoch = 3,
           .epochs = 10,
           .step = 101,
           .steps = 440,
           .has_loss = true,
           .loss = 1.20314f,
           .samples_per_second = 20431.5f};
  CHECK(progress_text(state) == "epoch 3/10  step 101/440  loss 1.2031  20,431 samples/s");
}
