// Rows and references that max_pool2d and avg_pool2d share.
#pragma once

#include <functional>

#include "tests/op_cases/image_cases.h"
#include "tests/op_cases/op_case.h"

namespace trainctl {

/// y = f(the window's pixels in the image, how many it has with those in the padding), row by row.
naive::Outputs pooled(const Tensor64& x, const Attrs& attrs,
                      const std::function<double(const std::vector<double>&, int64_t)>& f);

/// In both arrangements: odd sizes, overlap, gaps between windows, padding, ceil_mode, one window for all.
std::vector<OpCase> pool_rows(const std::string& op, const Attrs& more);

}  // namespace trainctl
