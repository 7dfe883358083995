// Checks that the kernels of a group may run at the same time.
#include "engine/ops/small_step/kernel_group_cuda.h"

#include "engine/ops/small_step/small_step.h"

namespace trainctl {
namespace {

const std::byte* begin_of(const TensorArg& arg) { return static_cast<const std::byte*>(arg.data); }
const std::byte* end_of(const TensorArg& arg) { return begin_of(arg) + arg.size() * byte_size(arg.dtype); }

bool overlap(const TensorArg& a, const TensorArg& b) { return begin_of(a) < end_of(b) && begin_of(b) < end_of(a); }
bool same_range(const TensorArg& a, const TensorArg& b) { return begin_of(a) == begin_of(b) && end_of(a) == end_of(b); }

/// Returns whether each output overlaps no other tensor, except the same range as an input of a later kernel.
bool written_apart(std::span<const GroupedKernel> kernels) {
  for (size_t i = 0; i < kernels.size(); ++i) {
    for (const TensorArg& written : kernels[i].call.out) {
      for (size_t j = 0; j < kernels.size(); ++j) {
        for (const TensorArg& read : kernels[j].call.in)
          if (overlap(written, read) && !(j > i && same_range(written, read))) return false;
        for (const TensorArg& other : kernels[j].call.out)
          if (&other != &written && overlap(written, other)) return false;
      }
    }
  }
  return true;
}

}  // namespace

std::optional<CudaKernel> prepare_group(std::span<const GroupedKernel> kernels) {
  if (!small_step_launches() || !written_apart(kernels)) return std::nullopt;
  return cuda::prepare_weight_grads(kernels);
}

}  // namespace trainctl
