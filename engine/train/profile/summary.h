// A few numbers that show where the time of the profiled steps went.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/train/profile/step_profile.h"

namespace trainctl {

/// For one rank, from the start of its first profiled step to the end of its last. The four parts add up to the whole:
///   compute   a kernel runs
///   exposed   no kernel runs, but bytes move between ranks
///   waiting   neither: peers have not arrived, or have not received what was sent
///   idle      nothing runs: the host, the data, other programs
struct RankShares {
  int rank = 0;
  double seconds = 0;                                      ///< length of the window from the start of the first
                                                           ///< profiled step to the end of the last
  double compute = 0, exposed = 0, waiting = 0, idle = 0;  ///< parts of 1
  double moving_seconds = 0;                               ///< bytes move, with or without kernels
  double hidden_seconds = 0;                               ///< the part of it under kernels
  double moved_bytes = 0, hidden_bytes = 0;                ///< bytes as Instruction::bytes counts them
};

/// All runs of one named instruction, over all ranks, steps and micro-batches.
struct InstructionTotal {
  std::string name, op;
  bool recompute = false;
  int64_t calls = 0;
  double seconds = 0;  ///< without waiting
  double waited_seconds = 0;
  double flops = 0, bytes = 0;
};

struct ProfileSummary {
  ProfileSteps steps;       ///< steps that at least one rank ran
  double step_seconds = 0;  ///< mean over ranks and steps, from step start to step start
  std::vector<RankShares> ranks;
  std::vector<InstructionTotal> instructions;  ///< longest first
};

/// Profiles of all ranks, each with at least one step.
ProfileSummary summarize(std::span<const RankProfile> profiles);

}  // namespace trainctl
