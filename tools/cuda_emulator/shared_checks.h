// Finds races in shared memory with vector clocks. Each warp of a cluster has a clock. It also knows, for every other
// warp, the latest clock that is ordered before its own next access. Barriers pass this knowledge on. A cell is a word
// of shared memory (a byte, if a kernel uses bytes), and records its last writer and readers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace trainctl::emulator {

class Clocks {
 public:
  void reset(int warps) {
    warps_ = warps;
    heard_.assign(static_cast<size_t>(warps) * static_cast<size_t>(warps), 0);
    for (int w = 0; w < warps; ++w) of(w)[w] = 1;
  }
  uint32_t* of(int warp) { return heard_.data() + static_cast<size_t>(warp) * static_cast<size_t>(warps_); }
  uint32_t now(int warp) { return of(warp)[warp]; }
  void tick(int warp) { ++of(warp)[warp]; }
  int warps() const { return warps_; }
  void hear(int warp, const std::vector<uint32_t>& news) {
    for (size_t i = 0; i < news.size(); ++i) of(warp)[i] = std::max(of(warp)[i], news[i]);
  }
  void tell(int warp, std::vector<uint32_t>& to) {
    to.resize(static_cast<size_t>(warps_));
    for (size_t i = 0; i < to.size(); ++i) to[i] = std::max(to[i], of(warp)[i]);
  }
  /// Returns whether the access of `other` at `then` comes before an access of a lane of `warp` now.
  bool ordered(int warp, int lane, int other, int other_lane, uint32_t then) {
    if (warp == other) return lane == other_lane || then < now(warp);
    return then <= of(warp)[other];
  }

 private:
  int warps_ = 0;
  std::vector<uint32_t> heard_;
};

/// The lane that accesses a cell, packed into one word, because words are compared and copied faster than their parts.
class Accessor {
 public:
  Accessor() = default;
  Accessor(int warp, int lane, bool atomic)
      : word_(static_cast<uint32_t>(warp) | static_cast<uint32_t>(lane) << 16 | uint32_t{atomic} << 24) {}
  int warp() const { return static_cast<int>(word_ & 0xffff); }
  int lane() const { return static_cast<int>(word_ >> 16 & 0xff); }
  bool atomic() const { return word_ >> 24 != 0; }
  bool is_lane_of(const Accessor& other) const { return ((word_ ^ other.word_) & 0xffffff) == 0; }

 private:
  uint32_t word_ = 0;
};

struct Access {
  uint32_t clock = 0;  ///< 0: none
  int32_t text_line = 0;
  Accessor by;
};

struct Cell {
  bool written = false;
  Access write, reads[2];
};

/// Returns the recorded access that is not ordered before this read, or null if there is none.
inline const Access* race_of_read(Clocks& clocks, const Cell& cell, int warp, int lane, bool atomic = false) {
  const Access& w = cell.write;
  if (w.clock == 0 || (w.by.atomic() && atomic) || clocks.ordered(warp, lane, w.by.warp(), w.by.lane(), w.clock))
    return nullptr;
  return &w;
}
inline const Access* race_of_write(Clocks& clocks, const Cell& cell, int warp, int lane, bool atomic = false) {
  for (const Access& r : cell.reads) {
    if (r.clock != 0 && !(r.by.atomic() && atomic) && !clocks.ordered(warp, lane, r.by.warp(), r.by.lane(), r.clock))
      return &r;
  }
  return race_of_read(clocks, cell, warp, lane, atomic);
}
inline void note_read(Cell& cell, const Access& access) {
  // Two readers are kept, the first and the latest other one; a race with a third may be missed.
  Access& first = cell.reads[0];
  (first.clock == 0 || first.by.is_lane_of(access.by) ? first : cell.reads[1]) = access;
}
inline void note_write(Cell& cell, const Access& access) {
  cell.written = true;
  cell.write = access;
  cell.reads[0] = cell.reads[1] = {};
}

}  // namespace trainctl::emulator
