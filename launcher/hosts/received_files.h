// Files of ranks on other hosts, written here piece by piece. Pieces that a full disk refuses are kept in memory, up to
// a bound, and written when it has room again: a file has no holes.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>

namespace trainctl::hosts {

class ReceivedFiles {
 public:
  /// `notice`: a line for the user.
  explicit ReceivedFiles(std::function<void(const std::string&)> notice) : notice_(std::move(notice)) {}

  /// Writes the bytes at `offset` of a file, which is created if needed. `begins`: truncates the file at `offset`
  /// first.
  void take(const std::string& path, int64_t offset, std::string_view bytes, bool begins);
  /// Retries writes that have failed; call it periodically, and at the end.
  void retry();

  static constexpr size_t kMostKeptBytes = size_t{16} << 20;

 private:
  struct Piece {
    std::string path;
    int64_t offset = 0;
    std::string bytes;
    bool begins = false;
  };
  static bool put(const Piece& piece, int& error);

  std::function<void(const std::string&)> notice_;
  std::deque<Piece> kept_;
  size_t kept_bytes_ = 0;
  bool is_lossy_ = false;  ///< pieces were dropped
};

}  // namespace trainctl::hosts
