// Runs large collectives and messages between the GPUs of a host on their copy engines: each rank copies what it needs
// from the others' arenas, over NVLink if there is one. Copies occupy no multiprocessor, so they do not slow down the
// products that run meanwhile. One kernel sums what was pulled, in about the time that it takes to read it.
//
//   all_gather      ready | pull every other's block | done
//   reduce_scatter  ready | pull every other's part of this rank's block | done | sum
//   all_reduce      ready | pull every other's share of what this rank sums | sum | ready | pull sums | done
//   all_to_all      ready | pull every other's block for this rank | done
//   broadcast       ready | pull the root's | done
//
// At `ready` and `done` the ranks of a group synchronize: the stream writes flags into the other ranks' memory and
// waits for the flags in its own (stream memory operations). One rank sets a flag, and the rank that waits for it
// clears it before it continues. A flag is therefore clear when it is set again, and a CUDA graph can be replayed.
//
// The ranks of a channel count its messages of a step in the flags `ready` and `done`. The stream writes them, without
// a kernel, which would have to wait for a free multiprocessor. Kernels of one thread wait for them (message_flags.h):
//
//   send number k      ready = k + 1 in the receiver's memory; the first one clears `done` before
//   recv number k      wait until ready > k | pull | done = k + 1 in the sender's memory; the last one clears `ready`
//   waiting for send k   wait until done > k, in the stream of the instruction that waits
//
// A sender waits for all its sends before its next step, and a receiver clears before it lets the sender know.
//
// Sums run in group order in f32, so every rank has the same bits.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <vector>

#include "engine/compile/program.h"
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/runtime/bound_operands.h"
#include "engine/runtime/communicator.h"
#include "engine/runtime/copied_collectives.h"
#include "engine/runtime/cuda/handles.h"
#include "engine/runtime/cuda/peer_memory.h"

namespace trainctl::cuda {

class CopyEngines {
 public:
  /// Collective over all ranks of the job. Takes those of the program's collectives, or, if there are messages, those
  /// of its messages that may be copied, whose ranks are processes that reach each other's arenas and have memory left
  /// for pulled data (copy_memory()). Takes none with NCCL_P2P_DISABLE=1. `arena` is an allocation of the current
  /// device, `device`.
  CopyEngines(const Program& program, Communicator& ranks, int device, std::byte* arena);
  CopyEngines(const CopyEngines&) = delete;
  CopyEngines& operator=(const CopyEngines&) = delete;

  /// True if it runs on copy engines; the same on all ranks of its group. `move` is the instruction's, or one with a
  /// smaller count.
  bool takes(const Instruction& instruction, const BoundMove& move) const;
  /// For an instruction that takes() accepts. Safe while capturing.
  void enqueue(const Instruction& instruction, const BoundMove& move, CudaStream stream) const;

  /// Returns whether a send or recv runs on copy engines; the same on both ranks.
  bool takes_message(const Instruction& instruction) const { return messages_.contains(&instruction); }
  /// For messages that takes_message() accepts. Safe while capturing. A send completes at once.
  void send(const Instruction& send, CudaStream stream) const;
  void recv(const Instruction& recv, const BoundMove& move, CudaStream stream) const;
  /// Waits until the peer has received this send, and all earlier ones to the same peer.
  void await_received(const Instruction& send, CudaStream stream) const;

  /// Lets enqueued work continue without the other ranks; its results are undefined and the process must end. Any
  /// thread; does not wait.
  void abort();

 private:
  /// Points within a collective at which its group synchronizes; each has its own flags.
  enum SyncPoint : int { kReady, kSummed, kDone };
  static_assert(kDone + 1 == kSyncPoints);

  struct Peer {
    std::unique_ptr<PeerMemory> arena, own;
  };
  /// A collective of the program that runs on copy engines.
  struct Call {
    const std::vector<int>* group = nullptr;
    int me = 0;                         ///< in the group
    std::vector<const std::byte*> in;   ///< by member
    std::vector<const std::byte*> out;  ///< by member
  };

  /// A send or recv that runs on copy engines.
  struct Message {
    const std::byte* data = nullptr;  ///< in the sender's arena
    uint32_t number = 0;              ///< in its channel, from 0
    bool is_last = false;             ///< the last one of a step in its channel
  };

  bool allocate_own();
  bool all_say(int group, size_t members, bool mine) const;
  void take_calls();
  void take_messages();
  void take_messages(int peer, const std::vector<const Instruction*>& instructions);
  void take_group(const std::vector<int>& group, const std::vector<const Instruction*>& instructions);
  bool open_peers(int id, const std::vector<int>& group);
  void load_kernels() const;

  void synchronize(const Call& call, SyncPoint point, CudaStream stream) const;
  void all_reduce(const Call& call, const BoundMove& move, CudaStream stream) const;
  void reduce_scatter(const Call& call, const BoundMove& move, CudaStream stream) const;
  std::byte* scratch() const;
  std::byte* flag_of(std::byte* own, SyncPoint point, int rank) const;
  uint32_t* own_count(SyncPoint point, int peer) const;
  uint32_t* count_at(int peer, SyncPoint point) const;

  const Program& program_;
  Communicator& ranks_;
  const int device_;
  std::byte* const arena_;
  const CopyMemory memory_;
  DeviceMemory own_;           ///< laid out as CopyMemory
  std::map<int, Peer> peers_;  ///< by rank
  std::map<const Instruction*, Call> calls_;
  std::map<const Instruction*, Message> messages_;
  Stream rescue_;  ///< for abort(); no other work can block it
  std::atomic<bool> aborted_{false};
};

}  // namespace trainctl::cuda
