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

/// Reads checkpoint.json, whose last line is its own checksum, and every byte of every file that it lists. The header
/// of a safetensors file must have exactly the pieces of the manifest, with their types and shapes. A safetensors file
/// without pieces (train.checkpoint.integrated) has whole tensors of the manifest. Defects of the checkpoint are
/// returned, not thrown.
Verification verify_checkpoint(const std::string& directory);

/// Records in the directory (.verified) that the checkpoint with this checkpoint.json was found complete. Returns false
/// if the directory is not writable.
bool record_verified(const std::string& directory);
/// Removes the file .verified.
void forget_verified(const std::string& directory);
bool is_recorded_verified(const std::string& directory, std::string_view checksum);

}  // namespace trainctl
