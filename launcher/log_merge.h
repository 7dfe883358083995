// Merges the logs of many ranks in order of time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "launcher/log_stream.h"
#include "launcher/run_directory.h"

namespace trainctl {

struct LogSource {
  int rank = 0;
  bool is_stderr = false;
};

class LogMerge {
 public:
  using OnBlock = std::function<void(const LogSource& source, const LogBlock& block)>;

  LogMerge(const RunDirectory& directory, const std::vector<int>& ranks);
  LogMerge(const LogMerge&) = delete;
  LogMerge& operator=(const LogMerge&) = delete;
  ~LogMerge();

  /// Applies to each stream; see LogStream. Call it before read().
  void skip_to_last(int64_t lines);
  void skip_until(int64_t ns);

  /// Passes the available blocks to `on_block`, earliest first; blocks without a time come before all others, by rank.
  /// While the run is active (`grows`), the newest blocks wait for the next call: another rank's line may be earlier.
  /// Stops after about 16 MiB. Returns whether there were any blocks.
  bool read(bool grows, const OnBlock& on_block);

 private:
  struct Source;
  void advance(Source& source, bool grows);

  std::vector<std::unique_ptr<Source>> sources_;  ///< by rank, stdout before stderr
  std::vector<Source*> waiting_;                  ///< heap of the sources that have a block, the earliest at the front
};

}  // namespace trainctl
