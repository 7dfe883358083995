// Emulates NCCL between processes that were forked from one parent; each has its own emulated GPU.
#pragma once

namespace trainctl::emulator {

/// Opens sockets between `ranks` processes. Call before forking them.
void open_links(int ranks);
/// Must be called in the process of a rank.
void become_rank(int rank);
/// Must be called in the parent process.
void close_links();
/// Returns when all data that this rank has sent are on their way.
void flush_links();

}  // namespace trainctl::emulator
