// A run's metrics.jsonl (docs/logs.md) as the data of a page.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace trainctl {

/// {"curves": {"loss": {"steps", "values"}, "learning_rate", "seconds", …},    over run_step, thinned
///  "epochs": {"mean_loss": curve, …}, "validations": {"loss": curve, …},
///  "validated": {"loss": {"last", "best", "best_step"}, …},      with validations only
///  "loads": {"max_load": curve, …},
///  "step_seconds": distribution of all logged steps, "last": the last line of a step,
///  "restarted_after": steps, "events": the lines of data, skipped and stopped, "start_up": …, "workers": of
///  asynchronous servers}
/// A missing file counts as an empty one. A last line without its newline is ignored. Throws SpecError with the line
/// number if a line is not a JSON object.
nlohmann::ordered_json metrics_data(const std::string& path);

}  // namespace trainctl
