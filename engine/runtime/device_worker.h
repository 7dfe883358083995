// The executor of a worker on a device whose servers are on the host's cores. What involves a server is taken out of
// its program and goes through host memory; what is among workers stays on the device:
//
//   host     recv weights, copy them to the device |             | copy gradients from there, send | sums with servers
//   device                                         | the program |
//
// The proof covers this order too: a program reads no weights before it has pulled them, and writes no gradient after
// it was pushed.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/runtime/executor.h"

namespace trainctl::servers {

/// A worker's program without its messages to servers and its collectives with them. `workers`: ranks below are none.
Program without_servers(const Program& program, int workers);

/// Makes the device's executor.
using MakeExecutor =
    std::function<std::unique_ptr<Executor>(const Program&, Communicator& workers, const ExecutorOptions&)>;

/// `mirror` is host memory of program.arena_bytes in which exchanged ranges have the arena's offsets; nothing else of
/// it is touched. Rows of tables are exchanged too: what pulls them writes them to the mirror before a step. `comm`
/// and `program` must outlive the executor.
std::unique_ptr<Executor> make_device_worker(const Program& program, int workers, Communicator& comm,
                                             const ExecutorOptions& options, std::span<std::byte> mirror,
                                             const MakeExecutor& make);

}  // namespace trainctl::servers
