// An op of backward passes alone: the rows of add and mul reach it.
#include "tests/op_cases/op_cases.h"

namespace trainctl {

extern const OpCases sum_to_cases = {};

}  // namespace trainctl
