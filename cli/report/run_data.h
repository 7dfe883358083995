// The data that a page shows about a run, read from its folder, or about a job that was only planned.
//
//   {"name": "lenet", "label": "run 3", "state": "done", "started": 1795517101.0, "path": "log_output/3",
//    "ending": "done", "seconds": 12.5, "exit_code": 0, "step": 440, "steps": 440,    only if the run has ended
//    "validation": {"accuracy": {"last", "best", "best_step"}, …},
//    "evaluation": the newest evaluation.json of a checkpoint of the run, with "number" and images,
//    "restarts": [{"rank", "kind", "message", "seconds"}, …], "failure": "…", "cause": error.json's first_cause,
//    "plan": plan.json without what no page shows, "folds": its layers and moves as `trainctl plan` folds them, "job":
//    "name: lenet\n…", "machine": machine.json, "metrics": metrics_data(), "profile": profile.json, "checkpoints":
//    [{"step", "state", "bytes", …}, …]}
//
// If a file is missing or unreadable, its field is omitted, so that a page can be made for every run.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "launcher/run_directory.h"

namespace trainctl {

nlohmann::ordered_json run_data(const RunDirectory& run);

/// The same for a job that was only planned. `plan`: the output of trainctl plan --json. `job`: YAML.
nlohmann::ordered_json planned_data(nlohmann::ordered_json plan, const std::string& job);

/// The data of a page: {"trainctl": version, "written": seconds since 1970, "runs": [run_data(), …], "differences":
/// differing_fields()}.
///
/// If there are two runs, and both have fingerprints, it also has "divergence": to_json(RunDifference), whose tensors
/// are replaced by "rows": [{"tensor": "gradient fc1.weight", "distances": one per step; 0: the same bits, -1: not a
/// number, null: not compared}, …].
nlohmann::ordered_json page_data(std::vector<nlohmann::ordered_json> runs, const std::string& version);

}  // namespace trainctl
