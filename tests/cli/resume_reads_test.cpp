// A resumed run reads the checkpoint from the disk once, whatever the plans. The launcher verifies every byte;
// the ranks, which are on the same host, then read their parts from the system's cache of files.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "engine/base/error.h"
#include "tests/cli/command.h"
#include "tests/launcher/launcher_process.h"
#include "tests/launcher/scratch.h"
#include "tests/skip.h"

using namespace trainctl;
namespace fs = std::filesystem;

namespace {

using Words = std::vector<std::string>;

/// A job with 12.6 million numbers of weights and adam's state: 50 MB, much more than a run reads otherwise.
constexpr const char* kResumeReadsJob = R"(
name: reads
seed: 3
dataset: {type: random, shape: [1024], label_dtype: f32, samples: 48, batch: 24}
network:
  - {name: a, type: dense, units: 1024}
  - {name: b, type: dense, units: 1024}
  - {name: c, type: dense, units: 1024}
  - {name: d, type: dense, units: 1024}
  - {name: out, type: dense, units: 1}
loss: mse
optimizer: {type: adam, learning_rate: 0.000001}
train: {steps: 1, checkpoint: {every_steps: 1}}
launch: {ranks: 1, device: cpu}
)";

const Words
    kOne = {},
    kResumeReadsData = {"launch.ranks=4", "parallel.mode=data_parallel"},
    kTensor =
        {"launch.ranks=4", "parallel.mode=semi_auto_parallel",
         "parallel.strategies={a: [[1, 1], [4, 1]], b: [[1, 4], [1, 4]], c: [[1, 1], [4, 1]], d: [[1, 4], [1, 4]]}"},
    kStages = {"launch.ranks=6", "parallel.mode=semi_auto_parallel", "parallel.stages=3", "parallel.micro_batches=3",
               "parallel.optimizer_shard={level: 3, min_kb: 0}"};

/// Bytes that this process and the processes that it has waited for got from read calls, and from the disk.
struct Reads {
  int64_t calls = 0, disk = 0;
};
Reads reads_so_far() {
  std::ifstream file("/proc/self/io");
  Reads reads;
  std::string name;
  for (int64_t count; file >> name >> count;) {
    if (name == "rchar:") reads.calls = count;
    if (name == "read_bytes:") reads.disk = count;
  }
  return reads;
}

/// Returns the bytes of the folder's files, which are no longer in the system's cache.
int64_t leave_cache(const std::string& folder) {
  int64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const int fd = open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    REQUIRE(fd >= 0);
    fsync(fd);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
    bytes += static_cast<int64_t>(entry.file_size());
  }
  return bytes;
}

struct Pair {
  std::string name;
  Words saved, resumed;
  double copies;  ///< number of copies of the state that all ranks of the resumed plan hold
};

}  // namespace

TEST_CASE("a resumed run reads each byte of the checkpoint from the disk once, over all ranks, whatever the plans") {
  for (const Pair& pair : {Pair{"the same plan", kResumeReadsData, kResumeReadsData, 4},
                           Pair{"data to tensor parallel", kResumeReadsData, kTensor, 1},
                           Pair{"1 rank to 6 with stages and shards", kOne, kStages, 1},
                           Pair{"4 ranks to 1", kResumeReadsData, kOne, 1}}) {
    CAPTURE(pair.name);
    const Scratch scratch;
    std::ofstream(scratch.path() + "/job.yaml") << kResumeReadsJob;
    Words words = {"run", "job.yaml"};
    words.insert(words.end(), pair.saved.begin(), pair.saved.end());
    CommandResult result = trainctl_command(scratch.path(), words);
    INFO(result.err);
    REQUIRE(result.exit_code == kExitDone);

    const std::string checkpoint = scratch.path() + "/log_output/1/checkpoints/step_00000001";
    const auto bytes = static_cast<double>(leave_cache(checkpoint));
    REQUIRE(bytes > 50e6);
    words = {"run", "job.yaml", "--resume-from", checkpoint, "train={steps: 2}"};
    words.insert(words.end(), pair.resumed.begin(), pair.resumed.end());
    const Reads before = reads_so_far();
    result = trainctl_command(scratch.path(), words);
    const Reads after = reads_so_far();
    INFO(result.err);
    REQUIRE(result.exit_code == kExitDone);
    // The checkpoint is read once to verify it, and then each rank reads its own part.
    CHECK(static_cast<double>(after.calls - before.calls) <= 1.1 * (1 + pair.copies) * bytes);
    const auto disk = static_cast<double>(after.disk - before.disk);
    CAPTURE(disk / bytes);
    if (disk < 0.9 * bytes) return skip_test("the temporary folder is on no disk whose reads the system counts");
    CHECK(disk <= 1.1 * bytes);
  }
}

TEST_CASE("a resumed run names each field of its optimizer that the run before it had otherwise") {
  const Scratch scratch;
  small_job(scratch.path());
  const std::vector<std::string> words = {"run", "job.yaml", "launch.ranks=2",
                                          "parallel={mode: data_parallel, local_steps: 4, replicas: 2}",
                                          "optimizer={type: adam, learning_rate: 0.01}"};
  const auto run_steps = [&](const std::string& steps, const std::vector<std::string>& more) {
    std::vector<std::string> all = words;
    all.push_back("train={steps: " + steps + ", checkpoint: {every_steps: 4}}");
    all.insert(all.end(), more.begin(), more.end());
    return trainctl_command(scratch.path(), all);
  };
  REQUIRE(run_steps("4", {}).exit_code == kExitDone);
  const std::string stored = scratch.path() + "/log_output/1/job.yaml";
  std::string job = slurp(stored);
  CHECK(contains(job, "local_rate: 1.414"));
  const CommandResult same = run_steps("8", {"--resume"});
  CHECK(same.exit_code == kExitDone);
  CHECK_FALSE(contains(same.out, "the optimizer is not that of the run"));

  // This is the job of an older version, which had other defaults.
  const auto replace = [&](const std::string& from, const std::string& to) {
    const size_t at = job.find(from);
    REQUIRE(at != std::string::npos);
    job.replace(at, job.find('\n', at) - at, to);
  };
  replace("local_rate: ", "local_rate: 0.0");
  const size_t outer = job.find("outer:");
  job.replace(job.find("momentum: 0.7", outer), 13, "momentum: 0.5");
  std::ofstream(stored) << job;
  const CommandResult older = run_steps("8", {"--resume-from", "log_output/1"});
  CHECK(older.exit_code == kExitDone);
  CHECK(contains(older.out, "parallel.outer.momentum: 0.7 (it was 0.5)"));
  CHECK(contains(older.out, "(it was 1.0)"));
  const CommandResult rate = run_steps("8", {"--resume-from", "log_output/2", "optimizer.learning_rate=0.02"});
  CHECK(contains(rate.out, "optimizer.learning_rate.base: 0.02 (it was 0.01)"));
}

TEST_CASE("a resumed run tells that a schedule over all of its steps has another length than before") {
  const Scratch scratch;
  small_job(scratch.path());
  const auto run_steps = [&](const std::string& steps, const std::string& total, const std::vector<std::string>& more) {
    std::vector<std::string> words = {
        "run", "job.yaml", "train={steps: " + steps + ", checkpoint: {every_steps: 4}}",
        "optimizer={type: sgd, learning_rate: {type: linear, base: 0.01, min: 0.002, total_steps: " + total + "}}"};
    words.insert(words.end(), more.begin(), more.end());
    return trainctl_command(scratch.path(), words);
  };
  REQUIRE(run_steps("4", "0", {}).exit_code == kExitDone);
  const CommandResult longer = run_steps("8", "0", {"--resume-from", "log_output/1"});
  INFO(longer.out);
  CHECK(longer.exit_code == kExitDone);
  CHECK(contains(longer.out, "the learning rate follows a schedule of 8 steps, and of 4 in the run in "));
  CHECK(contains(longer.out,
                 "log_output/1: step 5 has the rate 0.006, not 0.002; set the total_steps of "
                 "optimizer.learning_rate to continue as before"));
  const CommandResult same = run_steps("8", "4", {"--resume-from", "log_output/1"});
  CHECK(same.exit_code == kExitDone);
  CHECK_FALSE(contains(same.out, "follows a schedule"));
}
