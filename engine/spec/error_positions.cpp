// Adds positions in the job file to errors that were found after the file was read.
#include "engine/spec/error_positions.h"

#include <utility>
#include <vector>

namespace trainctl {

SpecError with_positions(const SpecError& error, const JobSpec& spec) {
  std::vector<Diagnostic> diagnostics = error.diagnostics();
  for (Diagnostic& diagnostic : diagnostics) {
    if (!diagnostic.pos.known()) diagnostic.pos = spec.position(diagnostic.path);
  }
  return SpecError(std::move(diagnostics));
}

SpecError with_validation_positions(const SpecError& error, const JobSpec& spec) {
  std::vector<Diagnostic> diagnostics = error.diagnostics();
  for (Diagnostic& diagnostic : diagnostics)
    if (diagnostic.path.starts_with("dataset.")) diagnostic.path = "validation." + diagnostic.path;
  return with_positions(SpecError(std::move(diagnostics)), spec);
}

}  // namespace trainctl
