// The user's syntax to select lines of a log: ranks and times.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace trainctl {

/// "0,3-5" -> 0, 3, 4, 5. Throws std::invalid_argument with the reason.
std::vector<int> parse_ranks(std::string_view text);

/// Unix nanoseconds of "10m" (before `now_ns`; s, m, h, d, 1h30m), of "14:30" or "14:30:05" (today), of
/// "2026-01-31", "2026-01-31 14:30" or "2026-01-31T14:30:05.5" (local, or with Z or +01:00). Throws
/// std::invalid_argument.
int64_t parse_since(std::string_view text, int64_t now_ns);

}  // namespace trainctl
