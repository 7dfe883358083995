// tests/random_jobs runs its jobs on emulated GPUs through this case: one process per job, which forks one per rank.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
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
#include "tests/skip.h"
#include "tools/cuda_emulator/nccl.h"

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
  emulator::flush_links();
}

/// Returns the exit code.
int run_rank(const Ranks& ranks, int rank) {
  try {
    emulator::become_rank(rank);
    train(ranks, rank);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    return 1;
  }
}

}  // namespace

TEST_CASE("the job of the file TRAINCTL_JOB writes its losses to the file TRAINCTL_LOSSES") {
  const char *job = std::getenv("TRAINCTL_JOB"), *losses = std::getenv("TRAINCTL_LOSSES");
  if (job == nullptr || losses == nullptr) return skip_test("TRAINCTL_JOB and TRAINCTL_LOSSES are not set");
  setenv("NCCL_P2P_DISABLE", "1", 1);  // a process has no memory of others' emulated GPUs
  std::ifstream file(job);
  REQUIRE(file.good());
  Ranks ranks{plan_job(parse_job(std::string{std::istreambuf_iterator<char>(file), {}}, job, {})), {}, {}, losses};
  ranks.programs = compile_all(ranks.job);
  std::vector<int64_t> arena_bytes;
  for (const Program& program : ranks.programs) arena_bytes.push_back(program.arena_bytes);
  ranks.memory = SharedMemory::create(arena_bytes);
  const int count = static_cast<int>(ranks.programs.size());
  emulator::open_links(count);
  for (int rank = 0; rank < count; ++rank) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      const int code = run_rank(ranks, rank);
      std::fflush(nullptr);
      _exit(code);
    }
  }
  emulator::close_links();
  for (int rank = 0; rank < count; ++rank) {
    int status = 0;
    REQUIRE(wait(&status) > 0);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
  }
}
