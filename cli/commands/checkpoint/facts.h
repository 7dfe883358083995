// Facts about a checkpoint that the commands report.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "engine/train/checkpoint/checkpoint_directory.h"

namespace trainctl {

/// "verified", "complete", "damaged", "being written" or "half-written".
std::string_view state_word(const CheckpointEntry& entry);

/// Finished epochs: "3", or "3 + 20" with steps of the next epoch.
std::string epoch_text(const Manifest& manifest);

int64_t total_bytes(const Manifest& manifest);  ///< total size of its files, without checkpoint.json
/// Mean loss of the epoch's steps so far; nullopt at the start of an epoch.
std::optional<double> epoch_loss(const Manifest& manifest);

/// "step_00000120.attempt_3".
std::string folder_name(const std::string& checkpoint);

/// Adds all facts of the manifest except the tensors.
void put_facts(nlohmann::ordered_json& json, const Manifest& manifest);

}  // namespace trainctl
