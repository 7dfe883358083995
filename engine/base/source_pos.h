// A position in a file.
#pragma once

#include <string>

namespace trainctl {

struct SourcePos {
  std::string file;
  int line = 0;    ///< from 1; 0: unknown
  int column = 0;  ///< from 1
  bool known() const { return line > 0; }
  friend bool operator==(const SourcePos&, const SourcePos&) = default;
};

}  // namespace trainctl
