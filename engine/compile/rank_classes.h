// Ranks whose programs differ in rank numbers alone are one class: compiled once, proved once, printed once. 4,096
// ranks of data and tensor parallel are one or two classes a stage.
//
// What differs between the programs of a class is a function of the rank: members of groups, peers, which part of a
// tensor or bucket is its own. docs/programs.md says why a proof of the class is one of all its ranks.
#pragma once

#include <vector>

#include "engine/compile/program.h"
#include "engine/compile/rank_groups.h"
#include "engine/plan/cost_model.h"
#include "engine/plan/plan.h"

namespace trainctl {

struct RankClasses {
  Mesh mesh;
  std::vector<Program> programs;        ///< one a class, of its first rank; classes in the order of their first ranks
  std::vector<std::vector<int>> ranks;  ///< by class, ascending
  std::vector<int> class_of;            ///< by rank
  std::vector<GroupKind> groups;        ///< all distinct ones
  std::vector<std::vector<int>> group_ids;  ///< by class, for each of Program::groups its index in `groups`

  int num_ranks() const { return static_cast<int>(class_of.size()); }
  /// Of the class's first rank: peers and members of groups are its own.
  const Program& program_of(int rank) const {
    return programs[static_cast<size_t>(class_of[static_cast<size_t>(rank)])];
  }
  /// Whether the peer of a send or recv is the rank at the same place of another stage, for every rank of the class.
  bool has_stage_peer(const Program& program, const Instruction& message) const;
  /// What the rank itself has there.
  int peer(int rank, const Instruction& message) const;
  std::vector<int> group(int rank, int index) const;
  /// A program with the rank's own number, groups and peers. Its parts of tensors and buckets stay those of the first
  /// rank.
  Program of_rank(int rank) const;
};

/// The classes of a job's ranks, verified together (verify_classes).
RankClasses compile_classes(const Graph& graph, const Plan& plan, const JobSpec& spec, const CostModel& cost);

/// These programs of all ranks, in rank order, each as a class of its own.
RankClasses each_by_itself(std::vector<Program> programs);

/// From `programs`, `ranks` and `mesh` the rest.
void number_groups(RankClasses& classes);

}  // namespace trainctl
