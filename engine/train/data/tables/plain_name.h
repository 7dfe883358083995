// Names of files that another file gives: an index of shards must not lead out of its folder.
#pragma once

#include <string>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/base/text.h"

namespace trainctl {

/// Returns the name. EnvError that names `index`, the file that gives it, if it is empty, absolute, or leads to a
/// parent.
inline const std::string& require_plain_name(const std::string& name, const std::string& index) {
  const std::string slashed = "/" + name + "/";
  const bool is_plain = !name.empty() && name.front() != '/' && name.find('\0') == std::string::npos &&
                        slashed.find("/../") == std::string::npos;
  if (!is_plain)
    throw EnvError(index + ": names the file '" + printable(shortened(name)) + "', which is outside of its folder");
  return name;
}

}  // namespace trainctl
