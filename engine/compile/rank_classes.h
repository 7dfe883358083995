// Ranks whose programs differ only in rank numbers form one class, which is compiled, proved and printed once.
// 4,096 ranks of data and tensor parallelism are one or two classes per stage.
//
// The differences between the programs of a class are functions of the rank: members of groups, peers, and which
// part of a tensor or bucket it owns. docs/programs.md explains why a proof for the class holds for all its ranks.
#pragma once

#include <vector>

#include "engine/compile/program.h"
#include "engine/compile/rank_groups.h"
#include "engine/plan/plan.h"
#include "engine/plan/traffic/cost_model.h"

namespace trainctl {

/// Attrs of a message that passes around a ring of ranks: the mesh axes that the ring's ranks differ in, and the distance
/// to the peer.
inline constexpr const char* kRingAxes = "ring_axes";
inline constexpr const char* kRingStep = "ring_step";

/// The peer of a message, for all ranks of a class: the rank at the same place in a stage, at a distance in each rank's
/// ring, or one rank.
struct PeerPlace {
  int stage = -1;
  int rank = -1;
  Axes ring;
  int step = 0;

  friend auto operator<=>(const PeerPlace&, const PeerPlace&) = default;
};

struct RankClasses {
  Mesh mesh;
  std::vector<Program> programs;  ///< one per class, that of its first rank; classes in the order of their first ranks
  std::vector<std::vector<int>> ranks;      ///< by class, ascending
  std::vector<int> class_of;                ///< by rank
  std::vector<GroupKind> groups;            ///< all distinct groups
  std::vector<std::vector<int>> group_ids;  ///< by class, for each entry of Program::groups its index in `groups`

  int num_ranks() const { return static_cast<int>(class_of.size()); }
  /// The program of the class's first rank: peers and group members are those of that rank.
  const Program& program_of(int rank) const {
    return programs[static_cast<size_t>(class_of[static_cast<size_t>(rank)])];
  }
  /// True if, for every rank of the class, the peer of a send or recv is the rank at the same place in another
  /// stage. Between a worker and a server it is one rank, whatever the other.
  bool has_stage_peer(const Program& program, const Instruction& message) const;
  PeerPlace peer_place(const Program& program, const Instruction& message) const;
  /// The rank at that place, seen from `rank`.
  int rank_at(const PeerPlace& place, int rank) const;
  /// The peer for this rank.
  int peer(int rank, const Instruction& message) const;
  std::vector<int> group(int rank, int index) const;
  /// The program with this rank's number, groups and peers. Parts of tensors and buckets remain those of the
  /// class's first rank.
  Program of_rank(int rank) const;
};

/// The classes of a job's ranks, verified together (verify_classes).
RankClasses compile_classes(const Graph& graph, const Plan& plan, const CostModel& cost,
                            const EvaluationOf* of = nullptr);
/// The same, not verified: of plans that are compared, and not run.
RankClasses compile_unverified(const Graph& graph, const Plan& plan, const CostModel& cost,
                               const EvaluationOf* of = nullptr);

// Asynchronous parameter servers: programs are compiled, and proved, as those of one worker (rank 0) with its servers.
// Each worker runs that worker's, with the servers' ranks after all workers'; the peer of a server's messages stays 0,
// which is whichever worker it serves.

/// The rank whose program the process `rank` runs; without asynchronous workers `rank` itself.
int rank_of_program(const Plan& plan, int rank);
/// Returns that program for the process `rank` of a job with `workers` asynchronous workers.
Program of_own_worker(Program program, int workers, int rank);

// Replicas (parallel.local_steps): programs are compiled as those of the first replica. The groups of other replicas
// follow from it; a group with ranks of several replicas is the same in all of them.

/// Returns the program of the same rank in another replica.
Program of_replica(Program program, const Plan& plan, int replica);
/// The program of a process, from that of rank_of_program(plan, rank).
Program of_process(Program program, const Plan& plan, int rank);

/// The programs of all ranks, in rank order, each as its own class.
RankClasses each_by_itself(std::vector<Program> programs);

/// Fills in all other fields from `programs`, `ranks` and `mesh`.
void number_groups(RankClasses& classes);

}  // namespace trainctl
