// The CPU kernels of every family of all_ops.def, and those of plugins.
#include <map>

#include "engine/base/error.h"
#include "engine/ops/plugins/plugin_kernels.h"

namespace trainctl {

#define OP_FAMILY(folder) extern const CpuKernels folder##_cpu;
#define GRAPH_FAMILY(folder)
#include "engine/ops/all_ops.def"
#undef OP_FAMILY

const CpuKernelDef* find_cpu_kernel(std::string_view name) {
  static const auto names = [] {
    std::map<std::string_view, const CpuKernelDef*> kernels;
    for (const CpuKernels* family : {
#define OP_FAMILY(folder) &folder##_cpu,
#include "engine/ops/all_ops.def"
         }) {
      for (const CpuKernelDef& kernel : *family)
        check(kernels.emplace(kernel.name, &kernel).second, "two CPU kernels have one name");
    }
    return kernels;
  }();
  const auto it = names.find(name);
  return it == names.end() ? find_plugin_cpu_kernel(name) : it->second;
}

}  // namespace trainctl
