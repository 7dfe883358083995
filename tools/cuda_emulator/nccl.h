// NCCL between processes that are forked from one, each with an emulated GPU of its own.
#pragma once

namespace trainctl::emulator {

/// Sockets between `ranks` processes that are yet to be forked.
void open_links(int ranks);
/// In the process of a rank.
void become_rank(int rank);
/// In the process that forked them.
void close_links();
/// All that this rank has sent is on its way.
void flush_links();

}  // namespace trainctl::emulator
