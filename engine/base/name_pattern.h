// Patterns that select layers and parameters by name.
//
//   *          any run of characters
//   ?          one character
//   {0-15,20}  a number in one of these ranges, written without leading zeros: h.{0-15}.fc; {0-30:2} is every second
#pragma once

#include <string_view>

namespace trainctl {

bool name_matches(std::string_view pattern, std::string_view name);

/// True if the text selects by pattern instead of being a name itself.
bool is_name_pattern(std::string_view text);

}  // namespace trainctl
