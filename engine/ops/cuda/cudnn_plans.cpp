// The key under which the measured choices for a convolution of cuDNN are kept: all that its plan depends on
// (cudnn_plans.h).
#include "engine/ops/cuda/cudnn_plans.h"

namespace trainctl::cuda {
namespace {

std::string joined(const Shape& numbers) {
  std::string text;
  for (const int64_t number : numbers) text += (text.empty() ? "" : ",") + std::to_string(number);
  return text;
}

}  // namespace

std::string key_of(const CudnnConvolution& c) {
  std::string key;
  for (const CudnnTensor* tensor : {&c.x, &c.w, &c.y})
    key += joined(tensor->dims) + ":" + joined(tensor->strides) + ";";
  for (const Shape* each : {&c.before, &c.after, &c.stride, &c.dilation}) key += joined(*each) + ";";
  for (const int part : {static_cast<int>(c.kind), static_cast<int>(c.dtype), static_cast<int>(c.w_dtype), int{c.tf32},
                         int{c.bias}, int{c.relu}})
    key += std::to_string(part);
  return key;
}

}  // namespace trainctl::cuda
