// Rows and references that max_pool2d and avg_pool2d share.
#pragma once

#include <functional>

#include "tests/op_cases/image_cases.h"
#include "tests/op_cases/op_case.h"

namespace trainctl {

/// Computes y row by row. f gets the pixels of a window that are in the image, and the number of its pixels including
/// those in the padding.
naive::Outputs pooled(const Tensor64& x, const Attrs& attrs,
                      const std::function<double(const std::vector<double>&, int64_t)>& f);

/// The rows of a pool with channels first and channels last: odd sizes, overlap, gaps between windows, padding,
/// ceil_mode, and one window for the whole image.
std::vector<OpCase> pool_rows(const std::string& op, const Attrs& more);

}  // namespace trainctl
