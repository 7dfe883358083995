// A kernel that writes out of bounds: after it, the device accepts no more work from this process.
#pragma once

namespace trainctl {

void run_faulty_kernel();

}  // namespace trainctl
