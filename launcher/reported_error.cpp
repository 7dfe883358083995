// Reads the error that a failed rank wrote about its failure.
#include "launcher/reported_error.h"

#include <string>

#include "launcher/quiet_fork.h"
#include "launcher/torch_error.h"

namespace trainctl {
namespace {

constexpr double kReportReadSeconds = 2;

}  // namespace

ReportedError reported_error(const RunDirectory& directory, int rank, bool ranks_explain) {
  const auto text = in_child(kReportReadSeconds, [&] {
    const auto error = ranks_explain ? read_rank_error(directory.rank_path(rank))
                                     : read_torch_error(directory.rank_file(rank, kTorchErrorFile));
    return error ? to_json(*error) : std::string();
  });
  if (!text) return {std::nullopt, true};
  return {parse_rank_error(*text), false};
}

}  // namespace trainctl
