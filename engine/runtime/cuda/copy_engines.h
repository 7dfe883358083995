// Large collectives between the GPUs of a host by their copy engines: each rank pulls what it needs from the others'
// arenas, over NVLink if there is one. Copies occupy no multiprocessor, so they do not slow down the products of the
// backward pass that run meanwhile. One kernel sums what was pulled, in about the time that it takes to read it.
//
//   all_gather      ready | pull every other's block | done
//   reduce_scatter  ready | pull every other's part of this rank's block | done | sum
//                   large ones in rounds of pull, sum
//   all_reduce      ready | pull every other's share of what this rank sums | sum | ready | pull sums | done
//   all_to_all      ready | pull every other's block for this rank, or the rows of it that are used | done
//   broadcast       ready | pull the root's | done
//
// At `ready` and `done` the ranks of a group synchronize: the stream writes flags into the other ranks' memory and
// waits for the flags in its own (stream memory operations). One rank sets a flag, and the rank that waits for it
// clears it before it continues. A flag is therefore clear when it is set again, and a CUDA graph can be replayed.
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
  /// Collective over all ranks of the job. Takes those of the program's collectives that may be copied, whose ranks are
  /// processes that reach each other's arenas and have memory left for pulled data (copy_memory()). Takes none of a
  /// program with messages, and none with NCCL_P2P_DISABLE=1. `arena` is an allocation of the current device, `device`.
  CopyEngines(const Program& program, Communicator& ranks, int device, std::byte* arena);
  CopyEngines(const CopyEngines&) = delete;
  CopyEngines& operator=(const CopyEngines&) = delete;

  /// True if it runs on copy engines; the same on all ranks of its group. `move` is the instruction's, or one with a
  /// smaller count.
  bool takes(const Instruction& instruction, const BoundMove& move) const;
  /// For an instruction that takes() accepts. Safe while capturing. `rows`: the part of each block that an all_to_all
  /// moves; null: all of it.
  void enqueue(const Instruction& instruction, const BoundMove& move, CudaStream stream,
               const CountedRows* rows = nullptr) const;

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

  bool allocate_own();
  void take_calls();
  void take_group(const std::vector<int>& group, const std::vector<const Instruction*>& instructions);
  bool open_peers(int id, const std::vector<int>& group);
  void load_kernels() const;

  void synchronize(const Call& call, SyncPoint point, CudaStream stream) const;
  void all_reduce(const Call& call, const BoundMove& move, CudaStream stream) const;
  void reduce_scatter(const Call& call, const BoundMove& move, int64_t at_once, CudaStream stream) const;
  std::byte* scratch() const;
  std::byte* flag_of(std::byte* own, SyncPoint point, int rank) const;

  const Program& program_;
  Communicator& ranks_;
  const int device_;
  std::byte* const arena_;
  const CopyMemory memory_;
  DeviceMemory own_;           ///< laid out as CopyMemory
  std::map<int, Peer> peers_;  ///< by rank
  std::map<const Instruction*, Call> calls_;
  Stream rescue_;  ///< for abort(); no other work can block it
  std::atomic<bool> aborted_{false};
};

}  // namespace trainctl::cuda
