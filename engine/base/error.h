// The three kinds of failure: SpecError (the user's job file), EnvError (the machine), and check()
// (our bug). Each maps to one exit code; see kExit*.
#pragma once

#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/source_pos.h"

namespace trainctl {

inline constexpr int kExitDone = 0;
inline constexpr int kExitSpec = 2;
inline constexpr int kExitEnv = 3;
inline constexpr int kExitBug = 4;
inline constexpr int kExitRankFailed = 5;

/// One thing that is wrong in the job file: where, what, and the next move.
struct Diagnostic {
  SourcePos pos;        ///< may be unknown (pos.line == 0), e.g. for a value given on the command line
  std::string path;     ///< the field, e.g. "parallel.strategies.layer1"
  std::string message;  ///< states what is wrong, the values found and those expected
  std::string hint;     ///< the next move ("legal cuts of this dim: 1, 2, 4"); may be empty
};

/// The user can fix it: every problem found, in file order. Exit code 2.
class SpecError : public std::runtime_error {
 public:
  explicit SpecError(std::vector<Diagnostic> diagnostics);
  SpecError(SourcePos pos, std::string path, std::string message, std::string hint = {});
  const std::vector<Diagnostic>& diagnostics() const { return diagnostics_; }

 private:
  std::vector<Diagnostic> diagnostics_;
};

/// `file:line:col: path: message`, the source line, and a caret with the hint, as a compiler prints
/// it. `source` is the text of the file the positions refer to; empty leaves the excerpt out.
std::string render(const Diagnostic& diagnostic, std::string_view source);

/// Host, network, memory or GPU: which rank, what to look at. Exit code 3.
class EnvError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Thrown by check(): our bug, never reachable from YAML. Exit code 4.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] void check_failed(std::string_view what, const std::source_location& where);

/// Asserts what must hold whatever the user wrote.
inline void check(bool holds, std::string_view what,
                  const std::source_location& where = std::source_location::current()) {
  if (!holds) [[unlikely]]
    check_failed(what, where);
}

}  // namespace trainctl
