// tests/random_jobs runs its jobs on emulated GPUs through this case: one process per job, which forks one per rank.
#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>

#include "engine/planning/compile_job.h"
#include "engine/runtime/comm/shared_memory.h"
#include "engine/runtime/comm/shared_memory_communicator.h"
#include "engine/spec/parse.h"
#include "engine/train/data/read_and_plan.h"
#include "engine/train/trainer/trainer.h"
#include "tests/cuda_emulator/forked_ranks.h"
#include "tests/skip.h"

using namespace trainctl;

namespace {

constexpr double kTimeoutSeconds = 60;

struct Ranks {
  PlannedJob job;
  std::vector<Program> programs;
  std::shared_ptr<SharedMemory> memory;
  const char* losses;  ///< written by rank 0
};

void train(const Ranks& ranks, int rank) {
  TrainOptions options;
  options.cuda.emplace();
  options.cuda->timeout_seconds = kTimeoutSeconds;
  options.cuda->notice = [](const std::string& line) { throw std::runtime_error(line); };
  const auto comm = make_shared_memory_communicator(ranks.memory, rank, kTimeoutSeconds);
  Trainer trainer(ranks.job, ranks.programs[static_cast<size_t>(rank)], *comm, {}, options);
  std::ofstream out;
  if (rank == 0) out.open(ranks.losses);
  out.precision(std::numeric_limits<float>::max_digits10);
  while (const std::optional<StepReport> report = trainer.run_step()) {
    out << "{\"run_step\": " << report->run_step << ", \"loss\": \"" << report->loss << "\"}\n";
  }
}

}  // namespace

TEST_CASE("the job of the file TRAINCTL_JOB writes its losses to the file TRAINCTL_LOSSES") {
  const char *job = std::getenv("TRAINCTL_JOB"), *losses = std::getenv("TRAINCTL_LOSSES");
  if (job == nullptr || losses == nullptr) return skip_test("TRAINCTL_JOB and TRAINCTL_LOSSES are not set");
  std::ifstream file(job);
  REQUIRE(file.good());
  Ranks ranks{plan_job(parse_job(std::string{std::istreambuf_iterator<char>(file), {}}, job, {})), {}, {}, losses};
  ranks.programs = compile_all(ranks.job);
  std::vector<int64_t> arena_bytes;
  for (const Program& program : ranks.programs) arena_bytes.push_back(program.arena_bytes);
  ranks.memory = SharedMemory::create(arena_bytes);
  const auto run = [&](int rank) {
    train(ranks, rank);
    return 0;
  };
  for (const int code : run_forked(static_cast<int>(ranks.programs.size()), run)) CHECK(code == 0);
}
