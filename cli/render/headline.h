// The first lines of a plan: what it is, and the facts that users compare.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace trainctl {

/// 1234567 -> "1.23 M" with the units "KMBT"; below 1000 "".
std::string short_count(double count, std::string_view units);

/// Uses only the data of the report of `trainctl plan`. Lines have at most `width` columns; 0: unlimited.
std::string render_headline(const nlohmann::ordered_json& report, size_t width);

}  // namespace trainctl
