// Tests of schedules: every micro-batch once in every chunk, forward before backward, a bounded number in flight,
// little idle time.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "engine/plan/plan.h"

using namespace trainctl;

namespace {

std::string text(const Pipeline& pipeline, int stage) {
  std::string line;
  for (const Task& task : stage_tasks(pipeline, stage))
    line += (line.empty() ? "" : " ") + to_string(task, pipeline.chunks);
  return line;
}

Pipeline pipeline(Schedule schedule, int stages, int micro_batches, int chunks = 1) {
  return {schedule, stages, chunks, micro_batches, true};
}

/// Every schedule that is legal for these numbers.
std::vector<Pipeline> pipelines(int most_stages, int most_micro_batches) {
  std::vector<Pipeline> all;
  for (int stages = 1; stages <= most_stages; ++stages) {
    for (int m = 1; m <= most_micro_batches; ++m) {
      for (Schedule schedule : {Schedule::gpipe, Schedule::one_f_one_b, Schedule::zero_bubble})
        all.push_back(pipeline(schedule, stages, m));
      for (int chunks = 2; chunks <= 4 && stages > 1 && m % stages == 0; ++chunks)
        all.push_back(pipeline(Schedule::interleaved_1f1b, stages, m, chunks));
    }
  }
  return all;
}

int tasks_between(const TaskTimes& times) {
  int idle = 0;
  for (size_t s = 0; s < times.starts.size(); ++s) {
    idle += times.length;
    for (size_t t = 0; t < times.starts[s].size(); ++t) idle -= times.ends[s][t] - times.starts[s][t];
  }
  return idle;
}

}  // namespace

TEST_CASE("each schedule gives the textbook order") {
  CHECK(text(pipeline(Schedule::one_f_one_b, 2, 4), 0) == "F0 F1 B0 F2 B1 F3 B2 B3");
  CHECK(text(pipeline(Schedule::one_f_one_b, 2, 4), 1) == "F0 B0 F1 B1 F2 B2 F3 B3");
  CHECK(text(pipeline(Schedule::gpipe, 2, 4), 0) == "F0 F1 F2 F3 B0 B1 B2 B3");
  CHECK(text(pipeline(Schedule::one_f_one_b, 4, 1), 0) == "F0 B0");
  CHECK(text(pipeline(Schedule::interleaved_1f1b, 2, 4, 2), 0) ==
        "F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 B2.1 B3.1 B2.0 B3.0");
  CHECK(text(pipeline(Schedule::interleaved_1f1b, 2, 4, 2), 1) ==
        "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0");
  CHECK(text(pipeline(Schedule::zero_bubble, 2, 4), 0) == "F0 F1 B0 W0 F2 B1 W1 F3 B2 W2 B3 W3");
  CHECK(text(pipeline(Schedule::zero_bubble, 2, 4), 1) == "F0 B0 F1 B1 W0 F2 B2 W1 F3 B3 W2 W3");
}

TEST_CASE("forward-only jobs have only forward tasks, with any number of micro-batches") {
  CHECK(text({Schedule::one_f_one_b, 2, 1, 3, false}, 0) == "F0 F1 F2");
  CHECK(text({Schedule::zero_bubble, 2, 1, 3, false}, 0) == "F0 F1 F2");
  CHECK(text({Schedule::interleaved_1f1b, 2, 2, 3, false}, 0) == "F0.0 F1.0 F0.1 F1.1 F2.0 F2.1");
  for (int m = 1; m <= 9; ++m) CHECK_NOTHROW(task_times({Schedule::interleaved_1f1b, 4, 3, m, false}));
}

TEST_CASE("each micro-batch goes forward once in each chunk, then backward once, then to its weight gradients") {
  for (const Pipeline& p : pipelines(6, 12)) {
    CAPTURE(to_string(p.schedule));
    CAPTURE(p.stages);
    CAPTURE(p.micro_batches);
    CAPTURE(p.chunks);
    for (int s = 0; s < p.stages; ++s) {
      std::map<std::pair<int, int>, int> done;  // by micro-batch and chunk: the number of tasks
      for (const Task& task : stage_tasks(p, s)) {
        REQUIRE(task.micro_batch < p.micro_batches);
        REQUIRE(task.chunk < p.chunks);
        CHECK(done[{task.micro_batch, task.chunk}]++ == static_cast<int>(task.kind));
      }
      CHECK(done.size() == static_cast<size_t>(p.micro_batches * p.chunks));
      for (const auto& [at, tasks] : done) CHECK(tasks == (p.splits_backward() ? 3 : 2));
    }
    CHECK_NOTHROW(task_times(p));  // all stages together: each task gets its input
  }
}

TEST_CASE(
    "no more micro-batches are in flight than the schedule needs, and zero_bubble needs no more than 1f1b's stage 0") {
  for (const Pipeline& p : pipelines(6, 12)) {
    const TaskKind last = p.splits_backward() ? TaskKind::weight_gradients : TaskKind::backward;
    for (int s = 0; s < p.stages; ++s) {
      int in_flight = 0, most = 0;
      for (const Task& task : stage_tasks(p, s)) {
        if (task.kind == TaskKind::forward) most = std::max(most, ++in_flight);
        if (task.kind == last) --in_flight;
      }
      const int all = p.micro_batches * p.chunks;
      CAPTURE(to_string(p.schedule));
      CAPTURE(p.stages);
      CAPTURE(p.micro_batches);
      switch (p.schedule) {
        case Schedule::gpipe:
          CHECK(most == all);
          break;
        case Schedule::one_f_one_b:
          CHECK(most == std::min(all, p.stages - s));
          break;
        case Schedule::zero_bubble:
          CHECK(most <= std::min(all, p.stages));
          break;
        case Schedule::interleaved_1f1b:
          CHECK(most == std::min(all, 2 * (p.stages - s - 1) + (p.chunks - 1) * p.stages + 1));
          break;
      }
    }
  }
}

// p stages, m micro-batches; a forward takes 1, a backward 2, of which weight gradients are 1.
//   gpipe, 1f1b        each stage waits for (p - 1) * 3
//   interleaved_1f1b   the same in tasks of 1/v of the size: 1/v of the time
//   zero_bubble        (p - 1) * (1 + 1 - 1): a third
TEST_CASE("the bubble: v chunks divide it by v, zero_bubble by three") {
  for (int stages = 2; stages <= 6; ++stages) {
    for (int m = stages; m <= 24; m += stages) {
      CAPTURE(stages);
      CAPTURE(m);
      const int idle = stages * (stages - 1) * 3;
      CHECK(tasks_between(task_times(pipeline(Schedule::gpipe, stages, m))) == idle);
      CHECK(tasks_between(task_times(pipeline(Schedule::one_f_one_b, stages, m))) == idle);
      CHECK(tasks_between(task_times(pipeline(Schedule::zero_bubble, stages, m))) == idle / 3);
      for (int chunks = 2; chunks <= 4; ++chunks) {
        CAPTURE(chunks);
        const TaskTimes times = task_times(pipeline(Schedule::interleaved_1f1b, stages, m, chunks));
        CHECK(tasks_between(times) == idle);
        CHECK(times.bubble() == doctest::Approx(double(stages - 1) / (stages - 1 + m * chunks)));
      }
    }
  }
}
