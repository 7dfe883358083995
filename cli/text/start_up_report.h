// Startup report for the user: the time until the end of the first step, and how it was spent.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "launcher/run_directory.h"

namespace trainctl {

/// The start_up.json (engine/train/files/metrics.h, start_up_json) of all ranks; empty if one is missing.
std::vector<nlohmann::ordered_json> read_start_ups(const RunDirectory& directory, int ranks);

/// "first step after 3.10 s (rank 1 was the slowest): CUDA 1.21, NCCL 1.30, kernels 0.44, step 0.05, rest 0.10": times
/// of the slowest rank, without the time it waited for others. Empty if it took less than `least_seconds` or is
/// unknown.
std::string start_up_line(const std::vector<nlohmann::ordered_json>& ranks, double least_seconds,
                          const RankNames& names = {});

}  // namespace trainctl
