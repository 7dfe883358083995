// Reads why a rank of a PyTorch program failed: from the file that torch.distributed.elastic's @record writes to
// $TORCHELASTIC_ERROR_FILE (torch/distributed/elastic/multiprocessing/errors/error_handler.py), and from its last
// output lines.
//
//   {"message": {"message": "ValueError: …", "extraInfo": {"py_callstack": "Traceback …", "timestamp": "1735689600"}}}
//   {"message": "…", "timestamp": 1735689600}
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "launcher/rank_error.h"

namespace trainctl {

inline constexpr std::string_view kTorchErrorFile = "torch_error.json";

/// The error is of kind program, or comm if it reports another rank. `modified`: unix seconds at which the file was
/// written; they replace the timestamp, which is in whole seconds, if they are less than two seconds later or if there
/// is none. nullopt if the text has no message and no stack.
std::optional<RankError> parse_torch_error(std::string_view text, double modified);

/// nullopt if it is missing, not a regular file, larger than 8 MiB, or broken.
std::optional<RankError> read_torch_error(const std::string& path);

/// Returns whether a message of PyTorch, Gloo or NCCL reports that another rank is gone or did not respond.
bool mentions_peer(std::string_view text);

}  // namespace trainctl
