// One checkpoint, from the ranks' images to the name that publishes it.
#pragma once

#include <atomic>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/planning/planned_job.h"
#include "engine/runtime/comm/save_board.h"
#include "engine/train/checkpoint/checkpoint_directory.h"

namespace trainctl {

struct CheckpointFacts {
  std::string version;  ///< version of trainctl
  int run = 0;
  int attempt = 0;  ///< CheckpointDirectory::claim_attempt
  int64_t step = 0;
  std::string lineage = {};             ///< CheckpointOwner
  bool weights_only = false;            ///< the images have no state of the optimizer
  std::optional<StoredBase> base = {};  ///< weights that no image has
  SaveBoard::Position position;
  std::string job;  ///< the resolved job, as YAML
};

/// By rank: the bytes of its file, as StateImage lays them out; empty: it has none. They are followed, by server, by
/// those of the rows of tables, as servers::TableImage lays them out: all, or those that have changed since this
/// attempt's last save, whose file of all is then linked.
using Images = std::vector<std::span<const std::byte>>;

/// An image has the rows that have changed since a save that no longer exists.
class EarlierSaveGone : public EnvError {
 public:
  using EnvError::EnvError;
};

/// The state has a nan or an infinity, and train.on_nan is stop: the checkpoint would take the place of one that can be
/// trained on.
class ImageNotFinite : public EnvError {
 public:
  using EnvError::EnvError;
};

/// Returns the path of what was published. Throws EnvError, and then nothing is. `progress` grows with the bytes that
/// were written.
std::string write_checkpoint(CheckpointDirectory& directory, const PlannedJob& job, const CheckpointFacts& facts,
                             const Images& images, std::atomic<uint64_t>& progress, Disk& disk = real_disk());

/// Adds the validation of its state to a checkpoint that was published before that validation ended. Throws EnvError,
/// and then the checkpoint is as it was.
void add_validation(const std::string& checkpoint, const PlannedJob& job, const SaveBoard::Position& position,
                    Disk& disk = real_disk());

}  // namespace trainctl
