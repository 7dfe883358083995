// One anonymous memory segment (memfd) that the ranks of one host share: each rank's status, the tables of groups,
// channels for messages, and every rank's arena. It has no name in the file system, so a crash leaves nothing behind.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/runtime/comm/batch_board.h"
#include "engine/runtime/comm/rank_board.h"

namespace trainctl {

namespace comm {
class Segment;
}

/// One rank sends messages to another.
struct Route {
  int32_t from = 0, to = 0;
  friend auto operator<=>(const Route&, const Route&) = default;
};

class SharedMemory : public RankBoard {
 public:
  /// A segment with one zeroed, 64-byte aligned arena per rank, and a channel for each of `routes`, which may be
  /// unsorted and repeated. Ranks may send messages on these routes only. Pages take memory when first touched.
  static std::shared_ptr<SharedMemory> create(const std::vector<int64_t>& arena_bytes_per_rank,
                                              std::vector<Route> routes = {});
  /// Maps a segment that another process created; takes ownership of `fd`. Throws EnvError if `fd` is not such a
  /// segment.
  static std::shared_ptr<SharedMemory> attach(int fd);

  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  ~SharedMemory() override;

  /// The descriptor is not close-on-exec: a child inherits it under the same number.
  int fd() const { return fd_; }
  int num_ranks() const override;
  int64_t bytes() const { return bytes_; }
  std::span<std::byte> arena(int rank) const;
  RankStatus& status(int rank) const override;
  StepGate& gate() const override;
  SaveBoard& saves() const override;
  KeyValueStore& values() const override;
  /// Sets the store that values() returns from now on.
  void use(std::shared_ptr<KeyValueStore> values) { values_ = std::move(values); }
  BatchBoard& batches() const;

  comm::Segment& segment() const { return *segment_; }

 private:
  SharedMemory() = default;
  void map(int64_t bytes);

  int fd_ = -1;
  std::byte* base_ = nullptr;
  int64_t bytes_ = 0;
  std::unique_ptr<comm::Segment> segment_;
  std::shared_ptr<KeyValueStore> values_;
};

}  // namespace trainctl
