// The parts of verify_programs. Each adds what it finds to `faults`.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/compile/verify_programs.h"

namespace trainctl {

using Faults = std::vector<ProgramFault>;

/// A named range of the arena that lives as long as the program.
struct Region {
  std::string name;
  int64_t begin = 0, end = 0;
  bool holds_from_start = false;  ///< has a value before the first instruction of a step
};

/// Sorted by offset.
std::vector<Region> persistent_regions(const Program& program);

/// Operands, indices and sizes, one by one (point 1).
void verify_form(const Program& program, int num_ranks, Faults& faults);
/// In list order every byte read holds what the instruction means to read (point 2).
void verify_contents(const Program& program, Faults& faults);
/// Run by streams, the same: conflicting accesses are ordered (point 2).
void verify_order(const Program& program, Faults& faults);
/// Gradients reduced once, parameters updated once (point 6).
void verify_updates(const Program& program, Faults& faults);
/// Sends and recvs (point 3).
void verify_messages(const std::vector<Program>& programs, Faults& faults);
/// Collectives (point 4).
void verify_collectives(const std::vector<Program>& programs, Faults& faults);
/// No deadlock (point 5).
void verify_progress(const std::vector<Program>& programs, Faults& faults);

}  // namespace trainctl
