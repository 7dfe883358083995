// Schedules: every micro-batch once, forward before backward, a bounded number in flight.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>

#include "engine/plan/plan.h"

using namespace trainctl;

namespace {

std::string text(const std::vector<Task>& tasks) {
  std::string line;
  for (const Task& task : tasks) {
    line += (line.empty() ? "" : " ") + std::string(task.phase == Phase::forward ? "F" : "B") +
            std::to_string(task.micro_batch);
  }
  return line;
}

// Runs all stages' lists together; true if each reaches its end: a forward waits for the stage before, a backward
// for the stage after.
bool all_stages_finish(Schedule schedule, int num_stages, int micro_batches) {
  std::vector<std::vector<Task>> lists;
  for (int s = 0; s < num_stages; ++s) lists.push_back(stage_tasks(schedule, s, num_stages, micro_batches, true));
  std::vector<size_t> next(num_stages, 0);
  std::map<std::tuple<int, bool, int>, bool> done;
  for (bool moved = true; moved;) {
    moved = false;
    for (int s = 0; s < num_stages; ++s) {
      if (next[s] == lists[s].size()) continue;
      const auto [phase, m] = lists[s][next[s]];
      const bool forward = phase == Phase::forward;
      const int other = forward ? s - 1 : s + 1;
      if (other >= 0 && other < num_stages && !done[{other, forward, m}]) continue;
      done[{s, forward, m}] = true;
      ++next[s];
      moved = true;
    }
  }
  for (int s = 0; s < num_stages; ++s) {
    if (next[s] != lists[s].size()) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("1f1b and gpipe give the textbook orders") {
  CHECK(text(stage_tasks(Schedule::one_f_one_b, 0, 2, 4, true)) == "F0 F1 B0 F2 B1 F3 B2 B3");
  CHECK(text(stage_tasks(Schedule::one_f_one_b, 1, 2, 4, true)) == "F0 B0 F1 B1 F2 B2 F3 B3");
  CHECK(text(stage_tasks(Schedule::gpipe, 0, 2, 4, true)) == "F0 F1 F2 F3 B0 B1 B2 B3");
  CHECK(text(stage_tasks(Schedule::one_f_one_b, 0, 2, 3, false)) == "F0 F1 F2");
  CHECK(text(stage_tasks(Schedule::one_f_one_b, 0, 4, 1, true)) == "F0 B0");
}

TEST_CASE("each micro-batch goes forward once, then backward once, with no more in flight than stages ahead") {
  for (Schedule schedule : {Schedule::gpipe, Schedule::one_f_one_b}) {
    for (int stages = 1; stages <= 6; ++stages) {
      for (int m = 1; m <= 9; ++m) {
        CAPTURE(stages);
        CAPTURE(m);
        for (int s = 0; s < stages; ++s) {
          std::vector<int> forwards(m, 0), backwards(m, 0);
          int in_flight = 0;
          int most = 0;
          for (const Task& task : stage_tasks(schedule, s, stages, m, true)) {
            REQUIRE(task.micro_batch < m);
            if (task.phase == Phase::forward) {
              ++forwards[task.micro_batch];
              most = std::max(most, ++in_flight);
            } else {
              CHECK(forwards[task.micro_batch] == 1);
              ++backwards[task.micro_batch];
              --in_flight;
            }
          }
          CHECK(forwards == std::vector<int>(m, 1));
          CHECK(backwards == std::vector<int>(m, 1));
          CHECK(most == (schedule == Schedule::gpipe ? m : std::min(m, stages - s)));
        }
        CHECK(all_stages_finish(schedule, stages, m));
      }
    }
  }
}
