// NCCL between processes forked from one parent, each with its own emulated GPU.
#pragma once

namespace trainctl::emulator {

/// Opens sockets between `ranks` processes. Call before forking them.
void open_links(int ranks);
/// Call in the process of a rank.
void become_rank(int rank);
/// Call in the parent.
void close_links();
/// Returns when all that this rank has sent is on its way.
void flush_links();

}  // namespace trainctl::emulator
