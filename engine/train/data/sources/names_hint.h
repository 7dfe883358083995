// A hint for a name that a data set lacks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/base/printable.h"
#include "engine/base/text.h"

namespace trainctl {

/// "columns: a, b; did you mean 'a'?"
inline std::string names_hint(std::string_view what, const std::vector<std::string>& names, std::string_view word) {
  const std::string similar = did_you_mean(word, names);
  return std::string(what) + ": " + printable(join(names)) + (similar.empty() ? "" : "; " + similar);
}

}  // namespace trainctl
