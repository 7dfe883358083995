// The processors of this host that the calling thread may use.
#pragma once

namespace trainctl {

/// The number of processors in the affinity mask of the calling thread, or 0 if the kernel does not report it.
int allowed_processors();

}  // namespace trainctl
