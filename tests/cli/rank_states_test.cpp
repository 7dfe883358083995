// Tests how the states of a network's ranks are described.
#include "cli/run/launch/rank_states.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "cli/run/launch/stopped_ranks.h"
#include "cli/run/worker/rank_failure.h"
#include "engine/planning/compile_job.h"
#include "engine/runtime/comm/shared_memory.h"
#include "engine/train/data/read_and_plan.h"
#include "tests/jobs/jobs.h"

using namespace trainctl;

namespace {

/// Four ranks of a data-parallel job. All of them are at its first collective, except the last rank, which is one
/// instruction before it.
struct FourRanks {
  PlannedJob job = plan_job(job_spec("small", {"parallel.mode=data_parallel", "launch.ranks=4"}));
  RankClasses classes = compile_classes(job);
  std::shared_ptr<SharedMemory> memory = SharedMemory::create({64, 64, 64, 64});
  RankStates states{classes};
  int collective = 0;

  FourRanks() {
    const std::vector<Instruction>& all = classes.programs[0].instructions;
    const auto first =
        std::find_if(all.begin(), all.end(), [](const Instruction& i) { return i.opcode == Opcode::collective; });
    REQUIRE(first != all.end());
    collective = static_cast<int>(first - all.begin());
    REQUIRE(collective > 0);
    for (int rank = 0; rank < 4; ++rank) {
      memory->status(rank).state = RankState::training;
      memory->status(rank).step = 5;
      memory->status(rank).instruction = rank == 3 ? collective - 1 : collective;
    }
  }
  const Instruction& at(int index) const { return classes.programs[0].instructions[static_cast<size_t>(index)]; }
};

}  // namespace

TEST_CASE("ranks that move are training") {
  FourRanks ranks;
  CHECK(ranks.states.describe(*ranks.memory, 10) == std::vector<std::string>(4, "training"));
  ranks.memory->status(0).step = 6;
  CHECK(ranks.states.describe(*ranks.memory, 11.5)[0] == "training");
}

TEST_CASE("a rank that makes no progress is shown with its position and the ranks of its group that have not arrived") {
  FourRanks ranks;
  ranks.states.describe(*ranks.memory, 10);
  const std::vector<std::string> texts = ranks.states.describe(*ranks.memory, 12);
  const std::string waiting = "waiting in " + ranks.at(ranks.collective).name + " for 3";
  for (int rank = 0; rank < 3; ++rank) CHECK(texts[static_cast<size_t>(rank)] == waiting);
  CHECK(texts[3] == "in " + ranks.at(ranks.collective - 1).name);
  ranks.memory->status(2).step = 4;  // a step behind
  ranks.states.describe(*ranks.memory, 12);
  CHECK(ranks.states.describe(*ranks.memory, 14)[0] == "waiting in " + ranks.at(ranks.collective).name + " for 2,3");
}

TEST_CASE("a rank that waits for a message is shown with the sender") {
  const PlannedJob job = plan_job(job_spec(
      "small",
      {"parallel={mode: semi_auto_parallel, stages: 2, micro_batches: 4, stage_config: {fc1: 0, act1: 0, out: 1}}",
       "launch.ranks=2"}));
  const RankClasses classes = compile_classes(job);
  const auto memory = SharedMemory::create({64, 64});
  RankStates states(classes);
  const auto last = [&](int rank, Opcode opcode) {
    const std::vector<Instruction>& all = classes.program_of(rank).instructions;
    int found = -1;
    for (size_t i = 0; i < all.size(); ++i)
      if (all[i].opcode == opcode) found = static_cast<int>(i);
    return found;
  };
  for (int rank = 0; rank < 2; ++rank) {
    memory->status(rank).state = RankState::training;
    memory->status(rank).step = 1;
  }
  const int receives = last(1, Opcode::recv), sends = last(0, Opcode::send);  // of the last micro-batch
  REQUIRE(receives > 0);
  REQUIRE(sends > 0);
  memory->status(1).instruction = receives;
  memory->status(0).instruction = sends - 1;  // those of the micro-batches before have been sent
  states.describe(*memory, 1);
  const std::string name = classes.program_of(1).instructions[static_cast<size_t>(receives)].name;
  CHECK(states.describe(*memory, 3)[1] == "waiting in " + name + " for 0");
  memory->status(0).instruction = sends;
  states.describe(*memory, 3);
  CHECK(states.describe(*memory, 5)[1] == "in " + name);
}

TEST_CASE("before and after its steps a rank is shown with its phase") {
  FourRanks ranks;
  ranks.memory->status(0).state = RankState::starting;
  ranks.memory->status(1).state = RankState::loading;
  ranks.memory->status(2).state = RankState::done;
  ranks.memory->status(3).state = RankState::failed;
  CHECK(ranks.states.describe(*ranks.memory, 99) == std::vector<std::string>{"starting", "loading", "done", "failed"});
}

TEST_CASE("a rank whose process is stopped is shown with the time since then") {
  std::vector<int> frozen;
  StoppedRanks stopped([&](int pid) { return std::find(frozen.begin(), frozen.end(), pid) != frozen.end(); });
  for (int rank = 0; rank < 3; ++rank) stopped.started(rank, 100 + rank);
  const auto at = [&](double now) {
    std::vector<std::string> texts(3, "running");
    stopped.describe(texts, now);
    return texts;
  };
  CHECK(at(10) == std::vector<std::string>(3, "running"));
  frozen = {101};
  CHECK(at(11) == std::vector<std::string>{"running", "stopped 0 s", "running"});
  CHECK(at(23.5)[1] == "stopped 12 s");
  frozen.clear();
  CHECK(at(25)[1] == "running");
  frozen = {102};
  CHECK(at(27)[2] == "stopped 0 s");
  stopped.ended(2);
  CHECK(at(29)[2] == "running");
}

TEST_CASE("a rank that prepares kernels before its first step makes progress, and one that does nothing does not") {
  FourRanks ranks;
  const Program& program = ranks.classes.programs[0];
  RankStatus& status = ranks.memory->status(0);
  status.step = 0;
  const uint64_t before = progress_of(status, program).position;
  CHECK(progress_of(status, program).position == before);
  status.looks.fetch_add(1);
  CHECK(progress_of(status, program).position != before);

  status.step = 5;
  const uint64_t training = progress_of(status, program).position;
  status.looks.fetch_add(1);
  CHECK(progress_of(status, program).position == training);
}

TEST_CASE("a window of samples tells for which part of the time each rank works") {
  FourRanks ranks;
  double now = 10;
  for (uint32_t sample = 0; sample < 400; ++sample, now += 0.02) {
    ranks.memory->status(0).step = 5 + sample / 10;
    for (int rank = 0; rank < 3; ++rank)  // Ranks 0 to 2 are in the collective a quarter of the time, and rank 3 never
                                          // is.
      ranks.memory->status(rank).instruction = sample % 4 == 0 ? ranks.collective : ranks.collective - 1;
    ranks.states.sample(*ranks.memory, now);
    if (sample < 200) CHECK(ranks.states.take_window(5).empty());
  }
  const std::vector<double> busy = ranks.states.take_window(5);
  REQUIRE(busy.size() == 4);
  CHECK(busy[0] == doctest::Approx(0.75));
  CHECK(busy[3] == doctest::Approx(1));
  CHECK(ranks.states.take_window(5).empty());  // each window is returned once
}

TEST_CASE("samples of ranks that do not all train are left out") {
  FourRanks ranks;
  for (double now = 10; now < 20; now += 0.02) {
    ranks.memory->status(0).step = static_cast<uint32_t>(10 * now);
    ranks.memory->status(2).state = now < 15 ? RankState::training : RankState::saving;
    ranks.states.sample(*ranks.memory, now);
  }
  CHECK(ranks.states.take_window(1).empty());
}
