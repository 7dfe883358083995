// Facts about the launches of a program that executors need before its first step. Launches are the groups of
// instructions that end_of_launch() separates.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/compile/program.h"

namespace trainctl {

/// The first instruction of each launch that differs from all earlier ones in more than its addresses. Only these need
/// to run to load all kernels of the program: repeated blocks launch the same kernels on the same shapes. `leaders`:
/// the first instructions of launches, ascending.
std::vector<size_t> distinct_launches(const Program& program, const std::vector<size_t>& leaders);

/// Kernels before which a device reports its position, so that a long step without communication shows progress. Empty
/// for steps that take less than about a second.
std::vector<size_t> progress_marks(const Program& program);

}  // namespace trainctl
