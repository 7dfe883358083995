// The Communicator of an asynchronous server's program. The event loop has received a whole push; the program's recvs
// take it from there, in order. Its sends do nothing: pulls are answered between the steps.
#pragma once

#include <cstring>

#include "engine/base/error.h"
#include "engine/runtime/communicator.h"

namespace trainctl::servers {

class PushInbox final : public Communicator {
 public:
  explicit PushInbox(Communicator& comm) : comm_(comm) {}

  /// The push that the next step takes: its messages one after another, each from a multiple of 64 bytes on.
  void open(const std::byte* push) { next_ = push; }

  int rank() const override { return comm_.rank(); }
  int num_ranks() const override { return comm_.num_ranks(); }
  void register_arena(void* base, int64_t bytes) override { comm_.register_arena(base, bytes); }
  void recv(int, void* data, int64_t bytes) override {
    std::memcpy(data, next_, static_cast<size_t>(bytes));
    next_ += (bytes + 63) / 64 * 64;
  }
  int64_t send(int, const void*, int64_t) override { return 1; }
  void wait_send(int, int64_t) override {}
  void set_position(RankPosition position) override { comm_.set_position(position); }
  RankPosition position_of(int rank) const override { return comm_.position_of(rank); }

  int open_group(const std::vector<int>&) override { return none(); }
  void all_reduce(int, const void*, void*, int64_t, DType) override { none(); }
  void all_gather(int, const void*, void*, int64_t, DType) override { none(); }
  void reduce_scatter(int, const void*, void*, int64_t, DType) override { none(); }
  void all_to_all(int, const void*, void*, int64_t, DType) override { none(); }
  void broadcast(int, const void*, void*, int64_t, DType, int) override { none(); }
  void barrier(int) override { none(); }

 private:
  static int none() {
    check(false, "an asynchronous server takes part in no collective");
    return -1;
  }

  Communicator& comm_;
  const std::byte* next_ = nullptr;
};

}  // namespace trainctl::servers
