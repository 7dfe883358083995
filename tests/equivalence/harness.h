// Runs a job on all its ranks as threads of one process and keeps everything that can be compared.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/train/job.h"

namespace trainctl {

struct RunResult {
  PlannedJob job;
  std::vector<Program> programs;
  std::vector<float> losses;                          ///< a step each; checked to be the same on all ranks
  std::map<std::string, std::vector<float>> weights;  ///< after the last step, whole; replicas checked to agree
  std::vector<std::vector<std::string>> calls;        ///< per rank: communications of the first step
  std::vector<int> calls_per_step;                    ///< per rank; -1: steps differ
  std::vector<int64_t> arena_bytes;                   ///< per rank: as registered
  std::map<int, std::vector<std::string>> printed;    ///< per rank: "name [values]"
};

/// Parses, plans, compiles, verifies (a fault is an error here) and trains. Throws what any rank threw.
RunResult run_job(const std::string& text, const std::vector<std::string>& overrides);

/// The same from what has been planned before.
RunResult run_job(PlannedJob job);

/// All variables whole, from each rank's arena (read through its program), as after initialisation.
class Executor;
std::map<std::string, std::vector<float>> gather_weights(const std::vector<Program>& programs,
                                                         const std::vector<Executor*>& executors);

}  // namespace trainctl
