// Collects all errors in a job, so that they are reported together.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/base/error.h"

namespace trainctl {

class Problems {
 public:
  void add(const SourcePos& pos, const std::string& path, const std::string& message, const std::string& hint = {});
  /// True if an error in this field or inside it is already known: consequences of it are not reported separately.
  bool touch(std::string_view path) const;
  bool empty() const { return all_.empty(); }
  /// True once no more are kept: a generated file could have a hundred thousand, and only the first ones are useful.
  /// Whoever adds many may stop, or leave out hints that are slow to find.
  bool full() const { return all_.size() >= kMost; }
  /// Throws them in file order, without duplicates.
  void throw_if_any();

 private:
  static constexpr size_t kMost = 200;
  std::vector<Diagnostic> all_;
};

}  // namespace trainctl
