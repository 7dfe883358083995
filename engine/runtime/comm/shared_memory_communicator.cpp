// Communicator of the ranks of one host, over a SharedMemory segment. Collectives are in collective_runner, messages in
// message_runner.
#include "engine/runtime/comm/shared_memory_communicator.h"

#include <fmt/format.h>
#include <unistd.h>

#include "engine/runtime/comm/collective_runner.h"
#include "engine/runtime/comm/message_runner.h"
#include "engine/runtime/comm/peers.h"

namespace trainctl {
namespace {

using comm::CollectiveCall;
using comm::CollectiveOp;

class SharedMemoryCommunicator : public Communicator {
 public:
  SharedMemoryCommunicator(std::shared_ptr<SharedMemory> memory, int rank, double timeout_seconds, int own_workers)
      : memory_(std::move(memory)),
        status_(memory_->status(rank)),
        rank_(rank),
        peers_(*memory_, rank, timeout_seconds, own_workers),
        waiter_(memory_->num_ranks(), comm::usable_cores()),
        collectives_(*memory_, rank, comm::usable_cores(), peers_, waiter_),
        messages_(*memory_, rank, peers_, waiter_) {
    status_.pid.store(getpid(), std::memory_order_relaxed);
    RankState state = RankState::starting;
    status_.state.compare_exchange_strong(state, RankState::loading, std::memory_order_release);
  }

  int rank() const override { return rank_; }
  int num_ranks() const override { return memory_->num_ranks(); }
  int open_group(const std::vector<int>& ranks) override { return collectives_.open_group(ranks); }

  // Buffers inside the segment are accessed in place and others are staged: nothing to prepare.
  void register_arena(void*, int64_t) override {}

  void all_reduce(int group, const void* in, void* out, int64_t count, DType dtype) override {
    run(group, CollectiveOp::all_reduce, in, 1, out, 1, count, dtype);
  }
  void all_gather(int group, const void* in, void* out, int64_t count, DType dtype) override {
    run(group, CollectiveOp::all_gather, in, 1, out, collectives_.size(group), count, dtype);
  }
  void reduce_scatter(int group, const void* in, void* out, int64_t count, DType dtype) override {
    run(group, CollectiveOp::reduce_scatter, in, collectives_.size(group), out, 1, count, dtype);
  }
  void all_to_all(int group, const void* in, void* out, int64_t count, DType dtype) override {
    run(group, CollectiveOp::all_to_all, in, collectives_.size(group), out, collectives_.size(group), count, dtype);
  }
  void all_to_all_rows(int group, const void* in, void* out, int64_t count, DType dtype,
                       const CountedRows& rows) override {
    check(count >= 0, "a count is not negative");
    const int size = collectives_.size(group);
    int64_t most = 0;
    for (int from = 0; from < size; ++from)
      for (int to = 0; to < size; ++to) most = std::max(most, rows.elements(size, from, to));
    check(most <= count, "the rows of a block are inside it");
    collectives_.run(group, CollectiveCall{.op = CollectiveOp::all_to_all,
                                           .dtype = dtype,
                                           .in = static_cast<const std::byte*>(in),
                                           .out = static_cast<std::byte*>(out),
                                           .count = most,
                                           .stride = count,
                                           .rows = &rows,
                                           .in_blocks = size,
                                           .out_blocks = size});
  }
  void broadcast(int group, const void* in, void* out, int64_t count, DType dtype, int root) override {
    check(root >= 0 && root < collectives_.size(group), "the root is in the group");
    run(group, CollectiveOp::broadcast, in, 1, out, 1, count, dtype, root);
  }
  void barrier(int group) override { run(group, CollectiveOp::barrier, nullptr, 0, nullptr, 0, 0, DType::i32); }

  int64_t send(int peer, const void* data, int64_t bytes) override {
    return messages_.send(peer, static_cast<const std::byte*>(data), bytes);
  }
  void wait_send(int peer, int64_t sequence) override { messages_.wait_send(peer, sequence); }
  void recv(int peer, void* data, int64_t bytes) override {
    messages_.recv(peer, static_cast<std::byte*>(data), bytes);
  }
  void recv_sum(int peer, float* sum, int64_t count) override { messages_.recv_sum(peer, sum, count); }

  bool has_message(int peer) override { return messages_.has_message(peer); }
  void drop_messages(int peer) override { messages_.drop(peer); }
  uint32_t mail() const override { return status_.mail.load(); }
  void wait_for_mail(uint32_t seen, double seconds) override {
    status_.mail.sleep(seen, std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9)));
  }

  void set_position(RankPosition position) override {
    status_.step.store(position.step, std::memory_order_relaxed);
    status_.instruction.store(position.instruction, std::memory_order_relaxed);
  }
  RankPosition position_of(int rank) const override {
    const RankStatus& status = memory_->status(rank);
    return {status.step.load(std::memory_order_relaxed), status.instruction.load(std::memory_order_relaxed)};
  }
  std::optional<CommError> hopeless(const std::string& call, const std::vector<int>& missing,
                                    bool late) const override {
    // A rank that has finished may have done its part of this call, so it is not lost before the timeout.
    const int lost = peers_.lost_rank([](int) { return false; });
    if (lost < 0 && !late) return std::nullopt;
    return peers_.give_up(call, lost, missing);
  }

 private:
  void run(int group, CollectiveOp op, const void* in, int in_blocks, void* out, int out_blocks, int64_t count,
           DType dtype, int root = 0) {
    check(count >= 0, "a count is not negative");
    collectives_.run(group, CollectiveCall{.op = op,
                                           .dtype = dtype,
                                           .in = static_cast<const std::byte*>(in),
                                           .out = static_cast<std::byte*>(out),
                                           .count = count,
                                           .in_blocks = in_blocks,
                                           .out_blocks = out_blocks,
                                           .root = root});
  }

  std::shared_ptr<SharedMemory> memory_;
  RankStatus& status_;
  int rank_;
  comm::Peers peers_;
  comm::Waiter waiter_;
  comm::CollectiveRunner collectives_;
  comm::MessageRunner messages_;
};

}  // namespace

std::unique_ptr<Communicator> make_shared_memory_communicator(std::shared_ptr<SharedMemory> memory, int rank,
                                                              double timeout_seconds, int own_workers) {
  if (rank < 0 || rank >= memory->num_ranks()) {
    throw EnvError(
        fmt::format("shared memory: this is rank {}, but the segment is for {} ranks", rank, memory->num_ranks()));
  }
  check(timeout_seconds > 0, "a timeout is positive");
  return std::make_unique<SharedMemoryCommunicator>(std::move(memory), rank, timeout_seconds, own_workers);
}

}  // namespace trainctl
