// The parts of verify_programs. Each appends its findings to `faults`.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/compile/verify/verify_programs.h"

namespace trainctl {

using Faults = std::vector<ProgramFault>;

/// A named range of the arena that lives as long as the program.
struct Region {
  std::string name;
  int64_t begin = 0, end = 0;
  bool holds_from_start = false;  ///< has a value before the first instruction of a step
};

/// Bytes at Bucket::gradients_offset.
inline int64_t gradient_bytes(const Bucket& b) {
  return (b.level >= 2 ? b.shard_elements() : b.elements) * byte_size(b.kept_type);
}

/// Returns the ranges that live as long as the program, sorted by offset.
std::vector<Region> persistent_regions(const Program& program);

/// Checks operands, indices and sizes of each instruction on its own (point 1 of verify_programs.h).
void verify_form(const Program& program, int num_ranks, Faults& faults);
/// Checks that in list order every byte that is read holds the value that the instruction expects (point 2).
void verify_contents(const Program& program, Faults& faults);
/// Checks the same for execution by streams: conflicting accesses must be ordered (point 2).
void verify_order(const Program& program, Faults& faults);
/// Checks that each gradient is reduced once and each parameter updated once per step (point 6).
void verify_updates(const Program& program, Faults& faults);
/// Checks that sends and recvs match (point 3).
void verify_messages(const RankClasses& classes, Faults& faults);
/// Checks that the collectives of a group match (point 4).
void verify_collectives(const RankClasses& classes, Faults& faults);
/// Checks pulls and pushes of parameter servers (point 7).
void verify_served(const RankClasses& classes, Faults& faults);
/// Checks that there is no deadlock (point 5).
void verify_progress(const RankClasses& classes, Faults& faults);

/// A group of matched collectives; one represents all groups whose members have the same classes in the same order.
struct MatchedGroup {
  int id = -1;               ///< in RankClasses::groups
  std::vector<int> ranks;    ///< members of one of them
  std::vector<int> members;  ///< the first of `ranks` of each class
};
std::vector<MatchedGroup> matched_groups(const RankClasses& classes);

/// A channel between two ranks; one represents all channels between the same classes.
struct MatchedChannel {
  int from = -1, to = -1;         ///< ranks
  std::vector<int> sends, recvs;  ///< indices in their programs
};
std::vector<MatchedChannel> matched_channels(const RankClasses& classes);

/// Returns the program with each operand that is an own part (OwnPart) replaced: by the whole range that it belongs to,
/// or in the case of shards without `whole_shards` by an empty range.
Program with_own_parts(const Program& program, bool whole_shards);

}  // namespace trainctl
