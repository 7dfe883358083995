// Collects everything that is wrong with a job, so that all of it is reported at once.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/base/error.h"

namespace trainctl {

class Problems {
 public:
  void add(const SourcePos& pos, const std::string& path, const std::string& message, const std::string& hint = {});
  /// Whether something is already known to be wrong with this field or inside it: what follows from it
  /// is not worth a message of its own.
  bool touch(std::string_view path) const;
  bool empty() const { return all_.empty(); }
  /// Throws them in file order, each once.
  void throw_if_any();

 private:
  std::vector<Diagnostic> all_;
};

}  // namespace trainctl
