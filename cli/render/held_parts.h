// hybrid_parallel: which ranks hold which part of which tensor, as a table.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace trainctl {

/// `held` is plan_report()'s. Unless `full`, tensors alike are one row and of many parts only some are listed.
std::string render_held(const nlohmann::ordered_json& held, bool full);

}  // namespace trainctl
