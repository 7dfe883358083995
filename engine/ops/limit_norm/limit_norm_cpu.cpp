// limit_norm on CPUs; see limit_norm.cpp.
#include <algorithm>
#include <vector>

#include "engine/ops/kernel.h"
#include "engine/ops/limit_norm/limit_norm_rule.h"

namespace trainctl {
namespace {

CpuKernel prepare_limit_norm(const KernelCall& call) {
  const NormRing ring{call.out[1].as<float>(), static_cast<int>(call.out[1].size()) - 2};
  const NormLimit limit{static_cast<float>(call.attrs.number("limit")), static_cast<int>(call.attrs.integer("least")),
                        GradientScale::of(call)};
  return [=, norm = call.out[0].as<float>(), is_mean = call.attrs.flag("mean"),
          sorted = std::vector<float>(static_cast<size_t>(ring.window))]() mutable {
    const auto count = static_cast<size_t>(ring.count());
    double usual = 0;
    if (is_mean) {
      for (size_t i = 0; i < count; ++i) usual += ring.norms()[i];
      usual /= static_cast<double>(std::max<size_t>(count, 1));
    } else if (count > 0) {
      std::copy_n(ring.norms(), count, sorted.begin());
      std::sort(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(count));
      usual = (double{sorted[(count - 1) / 2]} + sorted[count / 2]) / 2;
    }
    limit.apply(norm, static_cast<float>(usual), ring);
  };
}

}  // namespace

extern const CpuKernels limit_norm_cpu = {{"limit_norm", prepare_limit_norm}};

}  // namespace trainctl
