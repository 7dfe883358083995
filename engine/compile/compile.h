// Plan -> Program.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string_view>
#include <vector>

#include "engine/compile/lower/buckets.h"
#include "engine/compile/lower/storage_division.h"
#include "engine/compile/program.h"
#include "engine/plan/plan.h"
#include "engine/plan/traffic/cost_model.h"

namespace trainctl {

struct Compiler;  // engine/compile/compiler.h

/// One step of compile(): transforms one rank's program in place.
struct Pass {
  enum class Need : uint8_t {
    required,  ///< without it there is no program
    optional,  ///< makes the program faster or smaller; without it the program computes the same
  };
  std::string_view name;  ///< also the name of its function and its file
  std::string_view doc;   ///< one line, shown to users
  Need need = Need::required;
  void (*run)(Compiler&) = nullptr;
};

/// All passes, in execution order.
std::span<const Pass> passes();
/// The passes up to and including the one of that name; empty if there is none.
std::span<const Pass> passes_up_to(std::string_view name);

/// Called after each pass with the program that the pass has left.
using PassObserver = std::function<void(const Pass&, const Compiler&)>;
void run_passes(std::span<const Pass> list, Compiler& c, const PassObserver& after_each = {});

/// The program of one rank. Deterministic, and consistent with every other rank's. An evaluation's graph is compiled
/// with `of`, and its plan is that of the training.
Program compile(const Graph& graph, const Plan& plan, const CostModel& cost, int rank,
                const EvaluationOf* of = nullptr);

/// Determines the state that each rank keeps from step to step, without its instructions: the variables and buckets of
/// compile(), with the same shares of checkpoints. Only offsets in the arena and groups may differ. It lays out one
/// rank of each stage; for the others it changes only what depends on the rank.
class StateCompiler {
 public:
  /// The arguments must outlive it.
  StateCompiler(const Graph& graph, const Plan& plan, const CostModel& cost);
  /// Returns a program without instructions. It is valid until the next call.
  const Program& compile(int rank);

 private:
  /// The state of the compiler for the ranks of one stage, or for one server.
  struct Home {
    Program program;                             ///< program of the rank that was compiled last
    std::vector<const VariablePlan*> variables;  ///< one per entry of program.variables
    std::vector<const BucketPlan*> buckets;      ///< one per entry of program.buckets
  };
  Home lay_out(int rank);
  void change_to(int rank, Home& home) const;

  const Graph& graph_;
  const Plan& plan_;
  const CostModel& cost_;
  std::vector<BucketPlan> buckets_;  ///< the same for all ranks
  const StorageDivision division_;
  std::map<int, Home> homes_;  ///< by stage, then by server
};

/// The programs of all ranks, each compiled and verified separately. For tests that run all ranks in one process;
/// plans and launches use compile_classes (rank_classes.h).
std::vector<Program> compile_all(const Graph& graph, const Plan& plan, const CostModel& cost);

}  // namespace trainctl
