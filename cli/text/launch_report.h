// The part of a plan that depends on this machine: processes, cores and threads. For a job with a command this is the
// whole plan.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/compile/rank_classes.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

/// {"bind": "core", "max_restarts": 2, "ranks": [{"rank": 0, "cpus": [0, 1], "threads": 2}, …]}; cpus is empty
/// for an unbound rank.
nlohmann::ordered_json launch_report(const JobSpec& spec);
/// The same for a network; on several hosts, with the traffic of a step within and between them.
nlohmann::ordered_json launch_report(const JobSpec& spec, const RankClasses& classes);
/// Lines have at most `width` columns; 0: unlimited.
std::string render_launch(const nlohmann::ordered_json& report, size_t width = 0);

/// Contains job, command, working_dir, env (names), ranks, and `launch` as above.
nlohmann::ordered_json command_report(const JobSpec& spec);
std::string render_command(const nlohmann::ordered_json& report, size_t width = 0);

/// Quoted for a shell: python3 train.py --name 'a b'.
std::string shell_words(const std::vector<std::string>& words);

}  // namespace trainctl
