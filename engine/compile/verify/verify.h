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

/// Sorted by offset.
std::vector<Region> persistent_regions(const Program& program);

/// Operands, indices and sizes, one by one (point 1).
void verify_form(const Program& program, int num_ranks, Faults& faults);
/// In list order every byte that is read holds the value that the instruction expects (point 2).
void verify_contents(const Program& program, Faults& faults);
/// The same for execution by streams: conflicting accesses are ordered (point 2).
void verify_order(const Program& program, Faults& faults);
/// Gradients reduced once, parameters updated once (point 6).
void verify_updates(const Program& program, Faults& faults);
/// Sends and recvs (point 3).
void verify_messages(const RankClasses& classes, Faults& faults);
/// Collectives (point 4).
void verify_collectives(const RankClasses& classes, Faults& faults);
/// Pulls and pushes (point 7).
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

/// The program with every own part replaced by the whole range it belongs to, or with empty shards.
Program with_own_parts(const Program& program, bool whole_shards);

}  // namespace trainctl
