// Tests of the scale of the loss with precision: fp16.
#include "engine/train/trainer/loss_scale.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

using namespace trainctl;

namespace {

LossScaleState after_steps(const Fp16Spec& spec, const char* steps) {
  LossScaleState state = first_loss_scale(spec);
  for (const char* step = steps; *step != 0; ++step) state = loss_scale_after(spec, state, *step == 'x');
  return state;
}

}  // namespace

TEST_CASE("the loss scale grows after growth_interval finite steps in a row, and falls after each other step") {
  const Fp16Spec spec{.initial_scale = 64, .growth_interval = 3};
  CHECK(after_steps(spec, "") == LossScaleState{64, 0, 0});
  CHECK(after_steps(spec, "..") == LossScaleState{64, 2, 0});
  CHECK(after_steps(spec, "...") == LossScaleState{128, 0, 0});
  CHECK(after_steps(spec, "......") == LossScaleState{256, 0, 0});
  CHECK(after_steps(spec, "..x") == LossScaleState{32, 0, 1});
  CHECK(after_steps(spec, "..x..") == LossScaleState{32, 2, 1});
  CHECK(after_steps(spec, "..x...xx") == LossScaleState{16, 0, 3});
}

TEST_CASE("the loss scale does not fall below min_scale, and does not grow to infinity") {
  CHECK(after_steps({.initial_scale = 8, .min_scale = 2}, "xxxx").scale == 2);
  CHECK(after_steps({.initial_scale = 0.5, .min_scale = 1}, "").scale == 1);
  const double most = 0x1p127;
  CHECK(after_steps({.initial_scale = most, .growth_interval = 1}, "...").scale == most);
  const double least = after_steps({.initial_scale = 0x1p-125, .min_scale = 0}, "xxxxxx").scale;
  CHECK(std::isfinite(1 / static_cast<float>(least)));
}
