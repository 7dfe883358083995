// The CUDA kernels of every family of all_ops.def, and those of plugins.
#include <map>

#include "engine/base/error.h"
#include "engine/ops/plugins/plugin_kernels.h"

namespace trainctl {

#define OP_FAMILY(folder) extern const CudaKernels folder##_cuda;
#define GRAPH_FAMILY(folder)
#include "engine/ops/all_ops.def"
#undef OP_FAMILY

bool has_cuda_kernels() { return true; }

const CudaKernelDef* find_cuda_kernel(std::string_view name) {
  static const auto names = [] {
    std::map<std::string_view, const CudaKernelDef*> kernels;
    for (const CudaKernels* family : {
#define OP_FAMILY(folder) &folder##_cuda,
#include "engine/ops/all_ops.def"
         }) {
      for (const CudaKernelDef& kernel : *family)
        check(kernels.emplace(kernel.name, &kernel).second, "two CUDA kernels have one name");
    }
    return kernels;
  }();
  const auto it = names.find(name);
  return it == names.end() ? find_plugin_cuda_kernel(name) : it->second;
}

}  // namespace trainctl
