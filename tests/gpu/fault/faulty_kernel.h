// A kernel that writes where it may not: after it, the device takes nothing more from this process.
#pragma once

namespace trainctl {

void run_faulty_kernel();

}  // namespace trainctl
