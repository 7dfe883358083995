// Tests when a save is due.
#include "engine/train/checkpoint/save_policy.h"

#include <doctest/doctest.h>

#include <cmath>

using namespace trainctl;

namespace {

constexpr int64_t kEpoch = 10;

bool due(const CheckpointSpec& spec, int64_t step, int64_t last, double seconds = 0) {
  return is_save_due(spec, kEpoch, {.step = step, .last = last, .seconds = seconds});
}

}  // namespace

TEST_CASE("every_steps saves at multiples, and at the next step where one was missed") {
  CheckpointSpec spec;
  spec.every_steps = 4;
  CHECK_FALSE(due(spec, 3, -1));
  CHECK(due(spec, 4, -1));
  CHECK_FALSE(due(spec, 5, 4));
  CHECK(due(spec, 9, 4));  // at 8 the save before was still under way
  CHECK(due(spec, 12, 9));
  CHECK_FALSE(due(spec, 42, 41));  // resumed between two multiples
  CHECK(due(spec, 44, 41));
  CHECK_FALSE(due(spec, 5, 4, 1e9));  // steps alone count
}

TEST_CASE("every_epochs counts the epoch's steps, however many epochs that are") {
  CheckpointSpec spec;
  spec.every_epochs = 2;
  CHECK_FALSE(due(spec, 10, -1));
  CHECK(due(spec, 20, -1));
  CHECK_FALSE(due(spec, 21, 20));
  spec.every_epochs = int64_t{1} << 62;
  CHECK_FALSE(due(spec, 1000, -1));
}

TEST_CASE("every_minutes counts from the last save, and joins with steps") {
  CheckpointSpec spec;
  spec.every_minutes = 0.5;
  CHECK_FALSE(due(spec, 7, -1, 29.9));
  CHECK(due(spec, 7, -1, 30));
  spec.every_steps = 8;
  CHECK(due(spec, 8, 0, 1));
}

TEST_CASE("the automatic interval follows Young's formula within its bounds") {
  CHECK(automatic_interval(2, 0, 0) == doctest::Approx(std::sqrt(2 * 2 * 86400.0)));
  CHECK(automatic_interval(2, 1000, 99) == doctest::Approx(std::sqrt(2 * 2 * 87400.0 / 100)));
  CHECK(automatic_interval(1e-6, 0, 0) == 10);
  CHECK(automatic_interval(1e6, 0, 0) == 3600);
  CHECK(automatic_interval(0, 0, 0) > 10);  // a cost that was not measured is not free
  const CheckpointSpec automatic;
  CHECK_FALSE(due(automatic, 1000, -1, 9));
  CHECK(due(automatic, 1000, -1, 3600));
}
