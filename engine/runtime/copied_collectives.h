// Determines which collectives the copy engines of GPUs (cuda/copy_engines.h) can run, and the memory that a rank needs
// for them. Both depend only on the program, so that a plan can show them.
#pragma once

#include <cstdint>

#include "engine/compile/program.h"

namespace trainctl {

/// Smallest Instruction::bytes of a copied collective; NCCL does smaller ones in fewer steps.
inline constexpr int64_t kLeastCopiedBytes = int64_t{16} << 20;

/// The most ranks of a group whose collectives are copied.
inline constexpr int kMostCopyingRanks = 16;

/// A reduce_scatter that pulls more than this pulls and sums in rounds.
inline constexpr int64_t kMostPulledBytes = int64_t{256} << 20;

bool makes_sums(Collective kind);
/// Returns whether the collective's size, type and group allow copying.
bool may_be_copied(const Program& program, const Instruction& instruction);
/// A program with messages uses no copy engines: a stream that waits for a flag may block another stream, and then
/// ranks avoid a deadlock only if all of them run all collectives in the same order.
bool has_messages(const Program& program);

/// Rounds up to the alignment of pulled data.
int64_t align_pulled(int64_t bytes);

/// Elements of this rank's block that a reduce_scatter pulls from each other member before it sums them: all of them,
/// or those of one round. A result that shares memory with the operand is written when all members have read theirs, so
/// there all are pulled first.
int64_t pulled_at_once(const Program& program, const Instruction& reduce_scatter);

/// Elements of an all_reduce that member i of `members` sums.
struct Share {
  int64_t first = 0, count = 0;
  Share(int64_t all, int i, int members);
};

/// The layout of a rank's allocation: [ flags | pulled data to be summed ].
struct CopyMemory {
  int64_t flags = 0;
  int64_t bytes = 0;  ///< flags and pulled data; 0: nothing is copied
};
CopyMemory copy_memory(const Program& program, int num_ranks);

/// Bytes between flags; each synchronisation within a collective has one flag per rank.
inline constexpr int64_t kFlagStride = 64;
inline constexpr int kSyncPoints = 3;

}  // namespace trainctl
