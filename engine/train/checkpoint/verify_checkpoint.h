// Checks that every byte of a checkpoint is as it was written.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trainctl {

struct Verification {
  std::vector<std::string> problems;  ///< each names a file; empty: whole
  int64_t bytes = 0;                  ///< bytes that were read
  int files = 0;
};

/// Reads checkpoint.json, whose last line is its own checksum, then every byte of every file that it lists, and the
/// headers of the safetensors files: each piece of the manifest must be there with its type and shape, and nothing
/// else. A safetensors file without pieces (train.checkpoint.integrated) has whole tensors of the manifest. Never
/// throws for what is wrong with the checkpoint.
Verification verify_checkpoint(const std::string& directory);

/// Notes in the directory (.verified) that the checkpoint with this checkpoint.json was found whole. False if nothing
/// can be written there.
bool record_verified(const std::string& directory);
/// Takes the note back.
void forget_verified(const std::string& directory);
bool is_recorded_verified(const std::string& directory, std::string_view checksum);

}  // namespace trainctl
