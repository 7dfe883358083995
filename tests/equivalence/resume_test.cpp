// Saved under one plan, resumed under any: on the same plan with the same bits, on another within its tolerance.
#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <random>

#include "engine/runtime/stored_ranges.h"
#include "engine/spec/parse.h"
#include "engine/train/checkpoint/restore.h"
#include "engine/train/checkpoint/state_image.h"
#include "engine/train/checkpoint/write_checkpoint.h"
#include "tests/equivalence/harness.h"
#include "tests/equivalence/plan_cases.h"
#include "tests/jobs/jobs.h"
#include "tests/train/scratch_folder.h"

using namespace trainctl;

namespace {

constexpr int64_t kSteps = 12;

PlannedJob planned(const PlanCase& plan) {
  std::vector<std::string> overrides = plan.same;
  overrides.insert(overrides.end(), plan.plan.begin(), plan.plan.end());
  overrides.push_back("train={steps: " + std::to_string(kSteps) + "}");
  return plan_job(job_spec(plan.job, overrides));
}

/// A run that is saved before step `at`, as workers and writer do it.
struct SavedRun {
  RunResult result;
  std::string path;  ///< of the checkpoint
};

SavedRun run_and_save(const PlanCase& plan, int64_t at, const std::string& folder) {
  struct OfRank {
    std::optional<StateImage> image;
    std::vector<std::byte> bytes;
    bool begun = false;
  };
  std::mutex mutex;
  std::map<int, OfRank> ranks;
  SaveBoard::Position position;
  RunOn on;
  on.at_step = [&](const Program& program, int64_t step, Executor& executor) {
    OfRank* rank = nullptr;
    {
      const std::lock_guard lock(mutex);
      rank = &ranks[program.rank];
    }
    if (!rank->image) {
      rank->image.emplace(program);
      rank->bytes.resize(static_cast<size_t>(rank->image->bytes()));
      std::memcpy(rank->bytes.data(), rank->image->head().data(), rank->image->head().size());
      executor.prepare_copy(rank->image->copies(), rank->bytes.data());
    }
    if (rank->begun) CHECK(executor.is_copied(true));  // the step after the copy began is finished
    if (step == at) {
      executor.begin_copy();
      rank->begun = true;
    }
  };
  on.reported = [&](const Program& program, const TrainPosition& now) {
    if (program.rank == 0 && now.step == at)
      position = {now.epoch.loss, now.epoch.metrics, now.epoch.count, now.is_finite};
  };
  SavedRun saved;
  saved.result = run_job(planned(plan), on);
  Images images;
  for (const auto& [number, rank] : ranks) images.emplace_back(rank.bytes);
  CheckpointDirectory directory(folder);
  CheckpointFacts facts{.run = 1, .attempt = directory.claim_attempt(), .step = at, .position = position};
  facts.job = to_yaml(saved.result.job.spec);
  std::atomic<uint64_t> progress{0};
  saved.path = write_checkpoint(directory, saved.result.job, facts, images, progress);
  return saved;
}

/// What the rank keeps from step to step, in bytes of the checkpoint.
int64_t stored_bytes(const Program& program, const Manifest& manifest) {
  int64_t bytes = 0;
  for (const StoredRange& range : stored_ranges(program))
    if (const StoredTensor* tensor = manifest.find(range.variable->name, range.slot))
      bytes += range.count * byte_size(tensor->dtype);
  return bytes;
}

RunResult resume(const PlanCase& plan, const std::string& path) {
  PlannedJob job = planned(plan);
  const Manifest manifest = read_manifest(path);
  require_same_state(job, manifest, path, false);
  RunOn on;
  on.from = position_after(job, manifest, path);
  on.restore = [&](const Program& program, Executor& executor) {
    PieceReader reader(manifest, path);
    restore(program, reader, executor);
    const auto own = static_cast<double>(stored_bytes(program, manifest));
    CHECK(static_cast<double>(reader.bytes_read()) >= 0.9 * own);
    CHECK(static_cast<double>(reader.bytes_read()) <= 1.1 * own);  // nobody reads a whole tensor for its part
  };
  return run_job(std::move(job), on);
}

std::vector<float> from_step(const std::vector<float>& losses, int64_t step) { return {losses.begin() + step, losses.end()}; }

bool same_weights(const RunResult& a, const RunResult& b) {
  if (a.weights.size() != b.weights.size()) return false;
  for (const auto& [name, values] : a.weights) {
    const auto other = b.weights.find(name);
    if (other == b.weights.end() || other->second.size() != values.size() ||
        std::memcmp(other->second.data(), values.data(), values.size() * sizeof(float)) != 0)
      return false;
  }
  return true;
}

/// Plans of the same network, data and update: their runs follow one another.
bool follow_each_other(const PlanCase& a, const PlanCase& b) {
  return &a != &b && std::string(a.job) == b.job && a.same == b.same && !a.reference && !b.reference;
}

}  // namespace

TEST_CASE("a run that is resumed goes on with the same bits on its plan, and within rounding on another") {
  const std::vector<PlanCase>& cases = plan_cases();
  for (size_t c = 0; c < cases.size(); c += 1) {
    const PlanCase& plan = cases[c];
    SUBCASE(plan.name) {
      const ScratchFolder folder;
      std::mt19937 random(static_cast<unsigned>(c));
      const auto at = static_cast<int64_t>(1 + random() % (kSteps - 1));
      CAPTURE(at);
      const SavedRun saved = run_and_save(plan, at, folder.path());
      const RunResult again = resume(plan, saved.path);
      CHECK(again.losses == from_step(saved.result.losses, at));
      CHECK(same_weights(again, saved.result));

      std::vector<const PlanCase*> others;
      for (const PlanCase& other : cases)
        if (follow_each_other(plan, other)) others.push_back(&other);
      if (others.empty()) continue;
      const PlanCase& other = *others[random() % others.size()];
      CAPTURE(other.name);
      const RunResult moved = resume(other, saved.path);
      const std::vector<float> expected = from_step(saved.result.losses, at);
      REQUIRE(moved.losses.size() == expected.size());
      const double tolerance = std::max(plan.tolerance, other.tolerance);
      for (size_t i = 0; i < expected.size(); ++i)
        CHECK(std::abs(double(moved.losses[i]) - expected[i]) <= tolerance * std::abs(double(expected[i])));
    }
  }
}
