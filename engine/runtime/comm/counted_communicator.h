// A Communicator that counts the bytes of the calls which another one makes (engine/graph/exchanged_bytes.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "engine/runtime/communicator.h"

namespace trainctl {

/// A collective counts at the first rank of its group, with the bytes of all members; a message counts at its sender.
/// `bytes` must outlive the result.
std::unique_ptr<Communicator> make_counted_communicator(std::unique_ptr<Communicator> counted,
                                                        std::atomic<int64_t>& bytes);
/// Counts only the bytes of tokens: all_to_all_rows() and exchanged_tokens().
std::unique_ptr<Communicator> make_row_counting_communicator(std::unique_ptr<Communicator> counted,
                                                             std::atomic<int64_t>& bytes);

}  // namespace trainctl
