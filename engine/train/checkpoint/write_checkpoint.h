// Writes one checkpoint, from the ranks' images to the name that publishes it.
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

/// First, for each rank, the bytes of its file, as StateImage lays them out; empty if the rank writes no file. Then,
/// for each server, the rows of its tables, as servers::TableImage lays them out. These are either all rows, or the
/// rows that have changed since this attempt's last save; in the second case the earlier file with all rows is linked
/// into the checkpoint.
using Images = std::vector<std::span<const std::byte>>;

/// Thrown if an image has only the rows that have changed since a save, and that save no longer exists.
class EarlierSaveGone : public EnvError {
 public:
  using EnvError::EnvError;
};

/// Thrown if the state has a nan or an infinity and train.on_nan is stop. Such a checkpoint would take the place of one
/// from which training can continue.
class ImageNotFinite : public EnvError {
 public:
  using EnvError::EnvError;
};

/// Returns the path of the published checkpoint. If it throws EnvError, nothing has been published. `progress` grows
/// with the bytes that were written.
std::string write_checkpoint(CheckpointDirectory& directory, const PlannedJob& job, const CheckpointFacts& facts,
                             const Images& images, std::atomic<uint64_t>& progress, Disk& disk = real_disk());

/// Adds the results of a validation to a checkpoint that was published before this validation of its state ended. If it
/// throws EnvError, the checkpoint is unchanged.
void add_validation(const std::string& checkpoint, const PlannedJob& job, const SaveBoard::Position& position,
                    Disk& disk = real_disk());

}  // namespace trainctl
