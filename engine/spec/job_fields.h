// A job file as fields with their paths, to compare jobs.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

namespace trainctl {

/// Returns the fields in the order of the file: {"optimizer.learning_rate.base", "0.003"}, {"network.conv1.kernel",
/// "[5]"}. A layer's path contains its name, any other entry of a list its number. The values of env are left out.
/// Throws SpecError.
std::vector<std::pair<std::string, std::string>> job_fields(const std::string& yaml, const std::string& file);

/// The fields that differ between jobs: [{"field": "optimizer.learning_rate", "values": ["0.1", "0.2", null]}, …]; null
/// where a job lacks the field. Folders of logs always differ and are omitted.
nlohmann::ordered_json differing_fields(const std::vector<std::vector<std::pair<std::string, std::string>>>& jobs);

}  // namespace trainctl
