// Cases for a GPU: more than one block, rows longer than a block, primes, and sizes that fill whole 16-byte packs.
#pragma once

#include "tests/op_cases/op_case.h"

namespace trainctl {

/// Large cases of the families in TRAINCTL_OP_CASES.
std::vector<OpCase> large_cases();

}  // namespace trainctl
