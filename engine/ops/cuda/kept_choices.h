// Choices that are measured once on a machine and then kept in a file: which algorithm of a library computes a product
// or a convolution. Two algorithms may add in different orders, so each process of each run must take the same one:
// otherwise two runs of a job would differ in their last bits.
//
//   file   = { line }
//   line   = key ' ' choice '.' newline            neither has a space or a newline
//
// A process that does not find a key measures while it holds the file's lock, so that all ranks that share the file
// choose alike. A choice is added as one write. A line of another form (of a process that died, of a damaged disk) is
// ignored, and reported once.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>

namespace trainctl {

/// All calls are safe from several threads.
class KeptChoices {
 public:
  /// With an empty path, or a file that cannot be written, choices are kept only in this process.
  explicit KeptChoices(std::filesystem::path file) : file_(std::move(file)) {}

  /// The choice that this process has made before, or else that in the file.
  std::optional<std::string> find(const std::string& key);

  /// Same as find(). If there is no choice yet, calls `make` while the file is locked and keeps its choice there; if it
  /// cannot be kept, returns `unkept`, which must be the same in every process.
  std::string find_or_make(const std::string& key, const std::string& unkept, const std::function<std::string()>& make);

 private:
  std::filesystem::path file_;
  std::mutex mutex_;
  std::map<std::string, std::string> taken_;  ///< choices of this process: later changes of the file have no effect
};

}  // namespace trainctl
