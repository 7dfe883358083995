// Test cases that need something this machine may lack: a GPU, a terminal, a device file.
#pragma once

#include <string>

namespace trainctl {

/// Marks the running test case as skipped and prints why. The case should then return: what it checked before counts,
/// and a failed check still fails the case. A program whose cases were all skipped exits with kExitSkipped, which
/// CTest reports as Skipped.
void skip_test(const std::string& reason);

constexpr int kExitSkipped = 77;  ///< SKIP_RETURN_CODE in cmake/rooms.cmake

}  // namespace trainctl
