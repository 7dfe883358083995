// Takes the ranks' output: to the disk of this host (log_disk.h), or to the launcher of another (hosts/agent.cpp).
#pragma once

#include <cstdint>
#include <string_view>

namespace trainctl {

class LogSink {
 public:
  virtual ~LogSink() = default;

  /// `stream` is a new number. `restart`: number of restarts so far.
  virtual void open(uint32_t stream, int rank, bool is_error, int restart) = 0;
  /// Bytes that arrived at `ns` (unix).
  virtual void write(uint32_t stream, std::string_view bytes, int64_t ns) = 0;
  virtual void close(uint32_t stream) = 0;
  /// Returns whether no more output should be read from the ranks for now.
  virtual bool is_full() const = 0;
};

}  // namespace trainctl
