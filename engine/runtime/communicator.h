// Collectives and messages between the ranks of a job. Each rank has one Communicator, which one thread uses.
// A call that the other ranks do not join throws CommError after the timeout and names the missing ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/graph/dtype.h"

namespace trainctl {

/// Names the ranks that have not arrived, and where each of them is.
struct CommError : EnvError {
  using EnvError::EnvError;
  std::vector<int> missing;  ///< global ranks
};

/// The rows that an all_to_all actually transfers per block. All members pass the same counts.
struct CountedRows {
  int64_t row = 1;                  ///< elements of a row; divides those of a block
  const int32_t* counts = nullptr;  ///< [p, p]: rows that member i sends to member j; with `reversed`, j to i
  bool reversed = false;

  int64_t elements(int64_t p, int64_t from, int64_t to) const {
    return row * (reversed ? counts[to * p + from] : counts[from * p + to]);
  }
};

/// The activity of a rank, visible to its peers and to the launcher while it runs.
struct RankPosition {
  uint32_t step = 0;
  int32_t instruction = -1;  ///< index into its Program; -1: not in a step
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int num_ranks() const = 0;

  /// Returns the id of a group of global ranks in block order, including this rank. The first call is collective
  /// over the group; later calls return the same id. Called while loading, never in a step.
  virtual int open_group(const std::vector<int>& ranks) = 0;
  /// States the memory that later calls will use, so that peers can access it without copies. Called once, before use.
  virtual void register_arena(void* base, int64_t bytes) = 0;

  // Buffers are contiguous. p = size of the group, i = this rank's index in it.
  // Sums run in group order in f32, so every rank has the same bits.

  /// in == out, or they are disjoint.
  virtual void all_reduce(int group, const void* in, void* out, int64_t count, DType dtype) = 0;
  /// out[p * count]: block j from member j. `in` may be out + i * count.
  virtual void all_gather(int group, const void* in, void* out, int64_t count, DType dtype) = 0;
  /// in[p * count], out[count]: the sum of every member's block i. `out` may be in + i * count.
  virtual void reduce_scatter(int group, const void* in, void* out, int64_t count, DType dtype) = 0;
  /// in[p * count], out[p * count]: out block j = member j's block i. `in` and `out` are disjoint.
  virtual void all_to_all(int group, const void* in, void* out, int64_t count, DType dtype) = 0;
  /// An all_to_all that transfers only the first rows of each block; the rest of `out` is undefined.
  /// Implementations may move all of it.
  virtual void all_to_all_rows(int group, const void* in, void* out, int64_t count, DType dtype,
                               const CountedRows& rows) {
    (void)rows;
    all_to_all(group, in, out, count, dtype);
  }
  /// Bytes that the members of a group have sent each other for an exchange of tokens without all_to_all_rows():
  /// devices that communicate on their own, and whole blocks. Called at the group's first rank, for all members.
  virtual void exchanged_tokens(int64_t bytes) { (void)bytes; }
  virtual void broadcast(int group, const void* in, void* out, int64_t count, DType dtype, int root) = 0;
  virtual void barrier(int group) = 0;

  /// Does not wait for the receiver: the memory must not change until wait_send returns for it.
  /// Returns the number of this send on its channel, from 1.
  virtual int64_t send(int peer, const void* data, int64_t bytes) = 0;
  /// Blocks until send number `sequence` to `peer` has been received.
  virtual void wait_send(int peer, int64_t sequence) = 0;
  virtual void recv(int peer, void* data, int64_t bytes) = 0;
  /// Adds the `count` numbers of a message to `sum`; over shared memory without a copy of them.
  virtual void recv_sum(int peer, float* sum, int64_t count);

  // For a rank that serves many others, in any order. Only over shared memory.
  /// True if recv from `peer` need not wait for it to send.
  virtual bool has_message(int peer);
  /// Drops messages that `peer` has sent to an earlier process of this rank. `peer` must not send meanwhile.
  virtual void drop_messages(int peer);
  /// A number that changes with each message to this rank.
  virtual uint32_t mail() const;
  /// Returns when mail() is no longer `seen`, or after `seconds`.
  virtual void wait_for_mail(uint32_t seen, double seconds);

  /// Publishes this rank's position to peers and launcher; costs one store.
  virtual void set_position(RankPosition position) = 0;
  virtual RankPosition position_of(int rank) const = 0;

  /// For calls that a device makes on its own; any thread. Returns the error if `call`, which waits for `missing`,
  /// cannot end: a rank of the job has exited, or it is too `late`. nullopt as long as the call can still end.
  virtual std::optional<CommError> hopeless(const std::string& call, const std::vector<int>& missing, bool late) const;
};

}  // namespace trainctl
