// Which collectives the copy engines of GPUs (cuda/copy_engines.h) may make, and what memory a rank needs for them:
// from its program alone, so that a plan can show it.
#pragma once

#include <cstdint>

#include "engine/compile/program.h"

namespace trainctl {

/// Bytes (Instruction::bytes) of the smallest collective that is taken; smaller ones are NCCL's, which needs fewer
/// steps for them.
inline constexpr int64_t kLeastCopiedBytes = int64_t{16} << 20;

/// Ranks of the largest group.
inline constexpr int kMostCopyingRanks = 16;

bool makes_sums(Collective kind);
/// Whether the collective is one of those, by its size, type and group.
bool may_be_copied(const Program& program, const Instruction& instruction);
/// Copy engines make none of a program with messages: a stream that waits for a flag may hold up another stream, and
/// then only ranks that go through all collectives in one order always come.
bool has_messages(const Program& program);

/// Where what is pulled begins.
int64_t align_pulled(int64_t bytes);

/// Elements of an all_reduce that member i of `members` sums.
struct Share {
  int64_t first = 0, count = 0;
  Share(int64_t all, int i, int members);
};

/// A rank's allocation: [ flags | what was pulled and is to be summed ].
struct CopyMemory {
  int64_t flags = 0;
  int64_t bytes = 0;  ///< of both; 0: nothing is copied
};
CopyMemory copy_memory(const Program& program, int num_ranks);

/// Flags are so far apart; each meeting within a collective has one of each rank.
inline constexpr int64_t kFlagStride = 64;
inline constexpr int kMeetings = 3;

}  // namespace trainctl
