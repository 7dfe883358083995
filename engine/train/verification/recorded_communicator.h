// A Communicator that passes all calls on and records what a rank sends and receives.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/compile/program.h"
#include "engine/runtime/communicator.h"

namespace trainctl {

/// A collective, send or recv as one rank issues it.
struct RecordedCall {
  std::string text;   ///< "all_reduce over {0, 1}", "send to 2", "recv from 0"
  int64_t bytes = 0;  ///< Instruction::bytes
  friend bool operator==(const RecordedCall&, const RecordedCall&) = default;
};

/// "all_reduce over {0, 1} of 1,024 bytes".
std::string to_string(const RecordedCall& call);

/// The calls of one step, as its program lists them.
std::vector<RecordedCall> planned_calls(const Program& program);

/// `calls` and `arena_bytes` (the memory that the rank registers) must outlive the result.
std::unique_ptr<Communicator> make_recorded_communicator(std::unique_ptr<Communicator> recorded,
                                                         std::vector<RecordedCall>& calls, int64_t& arena_bytes);

}  // namespace trainctl
