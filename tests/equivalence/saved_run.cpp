// Runs a job, saves its state as workers and writer do, and resumes other runs from there.
#include "tests/equivalence/saved_run.h"

#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>

#include "engine/runtime/stored_ranges.h"
#include "engine/spec/parse.h"
#include "engine/train/checkpoint/restore.h"
#include "engine/train/checkpoint/resume_checks.h"
#include "engine/train/checkpoint/resume_position.h"
#include "engine/train/checkpoint/state_image.h"
#include "engine/train/checkpoint/write_checkpoint.h"

namespace trainctl {
namespace {

/// Size in the checkpoint of the state that the rank keeps from step to step, in bytes.
int64_t stored_bytes(const Program& program, const Manifest& manifest) {
  int64_t bytes = 0;
  for (const StoredRange& range : stored_ranges(program))
    if (const StoredTensor* tensor = manifest.find(range.variable->name, range.slot))
      bytes += range.count * byte_size(tensor->dtype);
  return bytes;
}

}  // namespace

SavedRun run_and_save(PlannedJob job, int64_t at, const std::string& folder) {
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
    if (program.rank != 0 || now.step != at) return;
    position = {now.epoch.loss, now.epoch.metrics, now.epoch.count, now.is_finite};
    position.loss_scale = now.loss_scale;
  };
  SavedRun saved;
  saved.result = run_job(std::move(job), on);
  Images images;
  for (const auto& [number, rank] : ranks) images.emplace_back(rank.bytes);
  CheckpointDirectory directory(folder);
  CheckpointFacts facts{.run = 1, .attempt = directory.claim_attempt(), .step = at, .position = position};
  facts.job = to_yaml(saved.result.job.spec);
  std::atomic<uint64_t> progress{0};
  saved.path = write_checkpoint(directory, saved.result.job, facts, images, progress);
  return saved;
}

RunResult resume(PlannedJob job, const std::string& path) {
  const Manifest manifest = read_manifest(path);
  require_same_state(job, manifest, path, false);
  RunOn on;
  on.from = position_after(job, manifest, path);
  on.restore = [&](const Program& program, Executor& executor) {
    PieceReader reader(manifest, path);
    restore(program, reader, executor);
    const auto own = static_cast<double>(stored_bytes(program, manifest));
    CHECK(static_cast<double>(reader.bytes_read()) >= 0.9 * own);
    CHECK(static_cast<double>(reader.bytes_read()) <= 1.1 * own);  // no rank reads a whole tensor for its part
  };
  return run_job(std::move(job), on);
}

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

}  // namespace trainctl
