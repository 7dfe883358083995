// Communicator of the ranks of one host, over a SharedMemory segment.
#pragma once

#include <memory>

#include "engine/runtime/comm/shared_memory.h"
#include "engine/runtime/communicator.h"

namespace trainctl {

/// Works for processes and for threads: N threads may each have one over the same SharedMemory object.
/// Buffers inside the segment (arena(rank)) are read and written by peers in place; others are staged through
/// it. Peers read and write a rank's buffers only while it is in a call.
/// The first `own_workers` ranks are independent: if one of them ends, only calls that wait for it fail.
std::unique_ptr<Communicator> make_shared_memory_communicator(std::shared_ptr<SharedMemory> memory, int rank,
                                                              double timeout_seconds, int own_workers = 0);

}  // namespace trainctl
