// Proves properties of a job from the programs of all its ranks, before it starts.
#pragma once

#include <string>
#include <vector>

#include "engine/compile/program.h"
#include "engine/compile/rank_classes.h"

namespace trainctl {

/// One fault and its place.
struct ProgramFault {
  int rank = -1;  ///< the first, if several ranks have the same fault
  int instruction = -1;
  std::string message;  ///< "recv act.layer1 from rank 0: rank 0 never sends it"
};

/// "rank 3, instruction 12: recv act.layer1 from rank 0: rank 0 never sends it".
std::string to_string(const ProgramFault& fault);

/// Empty when all of these hold, for every rank of every class:
///  1. every operand is inside the arena, and inside its bucket if it names one;
///  2. nothing is read before it is written, and no buffer is overwritten while it is still to be
///     read or sent (checked byte-wise on the arena, per rank);
///  3. sends and recvs of each pair of ranks match in order and bytes;
///  4. all ranks of a group issue the same collectives, in the same order, with the same bytes;
///  5. every rank reaches the end (no deadlock), run by streams and run sequentially, with sends that
///     complete only when received;
///  6. every gradient is reduced and every parameter updated exactly once a step;
///  7. parameter_server: each element has one server; every worker pulls it once a step, before it reads it, and its
///     gradient gets there once from each worker that has a term of it, after the last contribution and before the
///     update.
std::vector<ProgramFault> verify_classes(const RankClasses& classes);
/// The same for the programs of all ranks, each verified separately.
std::vector<ProgramFault> verify_programs(const std::vector<Program>& programs);

/// Fails (check) if there are faults.
void require_verified(const RankClasses& classes);

}  // namespace trainctl
