// The program's operator new and delete. A command that allocates small blocks by the million and ends soon asks for
// shelves: a freed block then waits on its size's shelf for the next request of that size, which takes a few
// instructions each way. Until then, and for larger blocks, both are malloc and free.
#pragma once

namespace trainctl {

/// From now on, for all threads. What shelves hold is never given back to the system, and what a thread has freed is
/// lost to others once it ends. Does nothing if address space is limited, or in a build with sanitizers.
void keep_small_blocks();

}  // namespace trainctl
