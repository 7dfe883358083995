// Plan -> Program.
#pragma once

#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "engine/compile/program.h"
#include "engine/plan/cost_model.h"
#include "engine/plan/plan.h"

namespace trainctl {

struct Compiler;  // engine/compile/compiler.h

/// One step of compile(): takes one rank's program as the pass before left it.
struct Pass {
  enum class Need : uint8_t {
    required,  ///< without it there is no program
    optional,  ///< makes the program faster or smaller: a program without it computes the same
  };
  std::string_view name;  ///< that of its function and of its file
  std::string_view doc;   ///< one line, for people
  Need need = Need::required;
  void (*run)(Compiler&) = nullptr;
};

/// All passes, in the order in which they run.
std::span<const Pass> passes();
/// The passes up to the one of that name, it included; empty where there is none of that name.
std::span<const Pass> passes_up_to(std::string_view name);

/// Called after each pass with the program as it left it.
using PassObserver = std::function<void(const Pass&, const Compiler&)>;
void run_passes(std::span<const Pass> list, Compiler& c, const PassObserver& after_each = {});

/// The program of one rank. Deterministic, and consistent with every other rank's.
Program compile(const Graph& graph, const Plan& plan, const JobSpec& spec, const CostModel& cost, int rank);

/// The programs of all ranks, each compiled and verified by itself. For tests that run them all in one process:
/// compile_classes (rank_classes.h) is what plans and launches use.
std::vector<Program> compile_all(const Graph& graph, const Plan& plan, const JobSpec& spec, const CostModel& cost);

}  // namespace trainctl
