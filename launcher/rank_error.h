// error.json: what a rank writes to its log directory when it fails. The launcher reads it to distinguish causes from
// consequences.
//
//   {"kind": "comm", "what": "rank 1 has not arrived …", "instruction": "all_reduce grad.h.3.fc",
//    "instruction_index": 881, "step": 412, "missing": [1], "time": 1735689600.25, "stack": "…"}
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trainctl {

/// loss: the loss is nan or infinite, which all ranks report.
/// audit: a replay of a step had other bits (train.audit_every), so a core of the rank's host computes incorrectly.
/// program: raised by the user's program (launcher/torch_error.h).
enum class ErrorKind { spec, env, comm, bug, loss, program, audit };
std::string_view to_string(ErrorKind kind);

struct RankError {
  ErrorKind kind = ErrorKind::bug;
  std::string what;
  std::string instruction;  ///< its name; empty: not in a step
  int instruction_index = -1;
  long step = 0;             ///< from 1; 0: before the first
  std::vector<int> missing;  ///< comm: the ranks that it waited for
  double time = 0;           ///< unix seconds
  std::string stack;         ///< bugs only
};

std::string to_json(const RankError& error);
/// nullopt if the text is not such an object.
std::optional<RankError> parse_rank_error(std::string_view json);

/// Writes `directory`/error.json atomically. Does not throw: the rank is already failing.
void write_rank_error(const std::string& directory, const RankError& error);
std::optional<RankError> read_rank_error(const std::string& directory);

/// Unix time in seconds.
double wall_seconds();
/// Seconds of the steady clock.
double steady_seconds();

}  // namespace trainctl
