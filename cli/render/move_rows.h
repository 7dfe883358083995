// The redistributions and transfers of a plan as rows of a table, with equal ones merged.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace trainctl {

/// "{0-3} {4-7}", "{0-12:4} {1-13:4} … {51-63:4}, 16 groups", "each of 0-7": groups of ranks, sorted by first rank.
std::string groups_text(const std::vector<std::vector<int>>& groups);

/// Each row: stage, pass, kind, tensor, count, bytes, groups. Rows are merged if they differ only in the numbers in
/// their names and in stages whose ranks form the same groups. With several stages, names are ordered by stage, and the
/// count of each stage follows the total.
std::vector<std::vector<std::string>> folded_moves(const nlohmann::ordered_json& report);

}  // namespace trainctl
