// Copies the state of ranks that are threads, and writes it as a checkpoint.
#include "engine/train/verification/saved_state.h"

#include <atomic>
#include <cstring>

#include "engine/spec/parse.h"
#include "engine/train/checkpoint/write_checkpoint.h"

namespace trainctl {

void SavedState::look(const Program& program, int64_t step, Executor& executor) {
  OfRank& rank = ranks_[static_cast<size_t>(program.rank)];
  if (!rank.image) {
    rank.image.emplace(program);
    rank.bytes.resize(static_cast<size_t>(rank.image->bytes()));
    if (rank.image->empty()) return;
    std::memcpy(rank.bytes.data(), rank.image->head().data(), rank.image->head().size());
    executor.prepare_copy(rank.image->copies(), rank.bytes.data());
  }
  if (rank.image->empty()) return;
  if (rank.begun) executor.is_copied(true);
  if (step != step_) return;
  executor.begin_copy();
  rank.begun = true;
}

std::string SavedState::write(const PlannedJob& job, const std::string& folder, const std::string& version) {
  Images images;
  for (const OfRank& rank : ranks_) images.emplace_back(rank.bytes);
  CheckpointDirectory directory(folder);
  CheckpointFacts facts{.version = version, .run = 1, .attempt = directory.claim_attempt(), .step = step_};
  facts.job = to_yaml(job.spec);
  std::atomic<uint64_t> progress{0};
  return write_checkpoint(directory, job, facts, images, progress);
}

}  // namespace trainctl
