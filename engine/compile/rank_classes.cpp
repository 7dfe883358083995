// Ranks whose programs differ only in rank numbers form one class, which is compiled, proved and printed once. 4,096
// ranks of data and tensor parallelism are one or two classes per stage.
#include "engine/compile/rank_classes.h"

#include <algorithm>
#include <map>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/parallel_for.h"
#include "engine/compile/compile.h"
#include "engine/compile/one_per_stage.h"
#include "engine/compile/rank_traits.h"
#include "engine/compile/verify/verify_programs.h"
#include "engine/plan/row_exchange.h"

namespace trainctl {
namespace {

constexpr size_t kClassesOfThread = 2;  ///< the number of classes for which starting a thread pays off

}  // namespace

bool RankClasses::has_stage_peer(const Program& program, const Instruction& message) const {
  const bool to_server = message.peer < num_ranks() && program_of(message.peer).server >= 0;
  return program.server < 0 && !to_server && message.peer % mesh.size() == program.rank % mesh.size();
}

PeerPlace RankClasses::peer_place(const Program& program, const Instruction& message) const {
  PeerPlace place;
  if (message.attrs.has(kRingStep) && mesh.size() > 1) {  // programs that are classes of their own have no mesh
    for (const int64_t axis : message.attrs.ints(kRingAxes)) place.ring.push_back(static_cast<Axis>(axis));
    place.step = static_cast<int>(message.attrs.integer(kRingStep));
  } else if (has_stage_peer(program, message)) {
    place.stage = message.peer / mesh.size();
  } else {
    place.rank = message.peer;
  }
  return place;
}

int RankClasses::rank_at(const PeerPlace& place, int rank) const {
  if (place.rank >= 0) return place.rank;
  const int in_stage = rank % mesh.size();
  if (place.stage >= 0) return place.stage * mesh.size() + in_stage;
  const std::vector<int> ring = mesh.group(in_stage, place.ring);
  const int ways = static_cast<int>(ring.size()), index = mesh.index(in_stage, place.ring);
  return rank - in_stage + ring[static_cast<size_t>((index + place.step + ways) % ways)];
}

int RankClasses::peer(int rank, const Instruction& message) const {
  return rank_at(peer_place(program_of(rank), message), rank);
}

std::vector<int> RankClasses::group(int rank, int index) const {
  const int id = group_ids[static_cast<size_t>(class_of[static_cast<size_t>(rank)])][static_cast<size_t>(index)];
  return groups[static_cast<size_t>(id)].members(mesh, rank);
}

Program RankClasses::of_rank(int rank) const {
  Program program = program_of(rank);
  for (size_t g = 0; g < program.groups.size(); ++g) program.groups[g] = group(rank, static_cast<int>(g));
  for (Instruction& i : program.instructions)
    if (i.opcode == Opcode::send || i.opcode == Opcode::recv) i.peer = peer(rank, i);
  program.rank = rank;
  if (program.server < 0) program.rank_in_stage = rank % mesh.size();
  return program;
}

void number_groups(RankClasses& classes) {
  std::map<GroupKind, int> ids;
  classes.groups.clear();
  classes.group_ids.clear();
  for (const Program& program : classes.programs) {
    std::vector<int>& of_class = classes.group_ids.emplace_back();
    for (const std::vector<int>& ranks : program.groups) {
      GroupKind group = group_of_ranks(classes.mesh, ranks, program.rank);
      const auto [entry, is_new] = ids.try_emplace(group, static_cast<int>(classes.groups.size()));
      if (is_new) classes.groups.push_back(std::move(group));
      of_class.push_back(entry->second);
    }
  }
}

namespace {

/// Returns the classes of all asynchronous workers and servers, given the classes of one worker with its servers.
RankClasses with_own_workers(RankClasses classes, int workers) {
  const int servers = classes.num_ranks() - 1;
  classes.class_of.assign(static_cast<size_t>(workers + servers), 0);
  for (size_t c = 0; c < classes.programs.size(); ++c) {
    Program& program = classes.programs[c];
    const int first = program.server < 0 ? 0 : workers + program.server, count = program.server < 0 ? workers : 1;
    program = of_own_worker(std::move(program), workers, first);
    classes.ranks[c].clear();
    for (int rank = first; rank < first + count; ++rank) {
      classes.ranks[c].push_back(rank);
      classes.class_of[static_cast<size_t>(rank)] = static_cast<int>(c);
    }
  }
  return classes;
}

}  // namespace

int rank_of_program(const Plan& plan, int rank) {
  if (plan.has_replicas()) return rank % plan.ranks;
  return plan.is_asynchronous() ? std::max(rank - (plan.own_workers - 1), 0) : rank;
}

Program of_own_worker(Program program, int workers, int rank) {
  program.rank = rank;
  if (program.server >= 0) return program;
  for (Instruction& i : program.instructions)
    if (i.opcode == Opcode::send || i.opcode == Opcode::recv) i.peer += workers - 1;
  return program;
}

Program of_replica(Program program, const Plan& plan, int replica) {
  const int first = replica * plan.ranks;
  program.rank += first;
  program.replica = replica;
  for (std::vector<int>& group : program.groups) {
    const bool is_of_several = std::any_of(group.begin(), group.end(), [&](int r) { return r >= plan.ranks; });
    if (!is_of_several)
      for (int& rank : group) rank += first;
  }
  for (Instruction& i : program.instructions)
    if (i.opcode == Opcode::send || i.opcode == Opcode::recv) i.peer += first;
  return program;
}

Program of_process(Program program, const Plan& plan, int rank) {
  if (plan.is_asynchronous()) return of_own_worker(std::move(program), plan.own_workers, rank);
  return plan.has_replicas() ? of_replica(std::move(program), plan, rank / plan.ranks) : std::move(program);
}

namespace {

/// Returns the classes of all replicas, given the classes of the first replica.
RankClasses with_replicas(RankClasses first, const Plan& plan) {
  RankClasses all;
  all.mesh = first.mesh;
  const auto num_classes = static_cast<int>(first.programs.size());
  for (int replica = 0; replica < plan.replicas; ++replica) {
    for (size_t c = 0; c < first.programs.size(); ++c) {
      all.programs.push_back(of_replica(first.programs[c], plan, replica));
      all.ranks.push_back(first.ranks[c]);
      for (int& rank : all.ranks.back()) rank += replica * plan.ranks;
    }
    for (const int of_class : first.class_of) all.class_of.push_back(replica * num_classes + of_class);
  }
  number_groups(all);
  return all;
}

}  // namespace

RankClasses compile_classes(const Graph& graph, const Plan& plan, const CostModel& cost, const EvaluationOf* of) {
  RankClasses classes = compile_unverified(graph, plan, cost, of);
  require_verified(classes);
  return plan.is_asynchronous() ? with_own_workers(std::move(classes), plan.own_workers) : classes;
}

RankClasses compile_unverified(const Graph& graph, const Plan& plan, const CostModel& cost, const EvaluationOf* of) {
  RankClasses classes;
  classes.mesh = plan.mesh;
  const std::vector<RankTraits> traits = rank_traits(graph, plan);
  std::map<RankTraits, int> found;
  for (int rank = 0; rank < plan.processes(); ++rank) {
    const auto [entry, is_new] =
        found.try_emplace(traits[static_cast<size_t>(rank)], static_cast<int>(classes.ranks.size()));
    if (is_new) classes.ranks.emplace_back();
    classes.ranks[static_cast<size_t>(entry->second)].push_back(rank);
    classes.class_of.push_back(entry->second);
  }
  classes.programs.resize(classes.ranks.size());
  parallel_for(classes.ranks.size(), kClassesOfThread,
               [&](size_t c) { classes.programs[c] = compile(graph, plan, cost, classes.ranks[c].front(), of); });
  if (plan.has_replicas()) return with_replicas(std::move(classes), plan);
  number_groups(classes);
  return classes;
}

RankClasses compile_one_per_stage(const Graph& graph, const Plan& plan, const CostModel& cost) {
  check(plan.servers == 0, "the ranks of a stage do the same");
  RankClasses classes;
  classes.mesh = plan.mesh;
  const int in_stage = plan.mesh.size();
  for (int stage = 0; stage < plan.num_stages; ++stage) {
    const auto counts = [&](int rank) { return graph.has_loss() && counts_loss(graph, {plan, stage, rank}); };
    const auto first = static_cast<int>(classes.ranks.size());
    const bool differ = counts(0) != counts(in_stage - 1);  // the first counts it if any does, the last if all do
    classes.ranks.resize(classes.ranks.size() + (differ ? 2 : 1));
    for (int rank = 0; rank < in_stage; ++rank) {
      const int of_class = first + (differ && !counts(rank) ? 1 : 0);
      classes.ranks[static_cast<size_t>(of_class)].push_back(stage * in_stage + rank);
      classes.class_of.push_back(of_class);
    }
  }
  // Ranks of a ring that is not balanced wait for the one that sees the most.
  const int busiest = busiest_in_rings(graph, plan);
  for (const std::vector<int>& ranks : classes.ranks) {
    const auto rank = std::find_if(ranks.begin(), ranks.end(), [&](int each) { return each % in_stage == busiest; });
    classes.programs.push_back(compile(graph, plan, cost, rank == ranks.end() ? ranks.front() : *rank));
  }
  number_groups(classes);
  return classes;
}

RankClasses each_by_itself(std::vector<Program> programs) {
  RankClasses classes;
  classes.mesh = Mesh(1);
  for (int rank = 0; rank < static_cast<int>(programs.size()); ++rank) {
    classes.ranks.push_back({rank});
    classes.class_of.push_back(rank);
  }
  classes.programs = std::move(programs);
  number_groups(classes);
  return classes;
}

}  // namespace trainctl
