// choose_rows: y = x_id of each row.  masked_rows: x in the rows of one id, else 0.
#include <algorithm>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/ops/kernel.h"

namespace trainctl {
namespace {

CpuKernel prepare_choose_rows(const KernelCall& call) {
  std::vector<const float*> of;
  for (size_t i = 1; i < call.in.size(); ++i) of.push_back(call.in[i].as<float>());
  const int64_t rows = call.in[0].size(), width = rows == 0 ? 0 : call.out[0].size() / rows;
  return [=, ids = static_cast<const int32_t*>(call.in[0].as<int32_t>()), y = call.out[0].as<float>()] {
    for (int64_t r = 0; r < rows; ++r) {
      if (ids[r] < 0 || ids[r] >= static_cast<int64_t>(of.size()))
        throw EnvError("choose_rows: the data contains number " + std::to_string(ids[r]) + ", but there are " +
                       std::to_string(of.size()) + " inputs (or adapters) to choose from, counted from 0");
      std::copy_n(of[static_cast<size_t>(ids[r])] + r * width, width, y + r * width);
    }
  };
}

CpuKernel prepare_masked_rows(const KernelCall& call) {
  const int64_t rows = call.in[0].size(), width = rows == 0 ? 0 : call.out[0].size() / rows;
  const auto number = static_cast<int32_t>(call.attrs.integer("number", 0));
  return [=, ids = static_cast<const int32_t*>(call.in[0].as<int32_t>()),
          x = static_cast<const float*>(call.in[1].as<float>()), y = call.out[0].as<float>()] {
    for (int64_t r = 0; r < rows; ++r)
      if (ids[r] == number)
        std::copy_n(x + r * width, width, y + r * width);
      else
        std::fill_n(y + r * width, width, 0.0f);
  };
}

}  // namespace

extern const CpuKernels choose_rows_cpu = {{"choose_rows", prepare_choose_rows}, {"masked_rows", prepare_masked_rows}};

}  // namespace trainctl
