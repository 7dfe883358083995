// Convolutions that cuDNN computes on a GPU. Here they are plain loops, so that the code around them runs; they are
// counted, and reported as left out at the end. There is no attention of cuDNN: the engine's own kernels run.
#include <cstdio>
#include <cstring>

#include "engine/base/error.h"
#include "engine/graph/bf16.h"
#include "engine/ops/cuda/cudnn_plans.h"
#include "tools/cuda_emulator/global_memory.h"
#include "tools/cuda_emulator/runtime_state.h"

namespace trainctl::cuda {
namespace {

struct Count {
  int convolutions = 0;
  ~Count() {
    if (convolutions > 0)
      std::fprintf(stderr, "emulator: %d convolutions use cuDNN on a GPU and were computed by plain loops: left out\n",
                   convolutions);
  }
};
Count count;

float element(const void* data, DType dtype, int64_t i) {
  return dtype == DType::f32 ? static_cast<const float*>(data)[i] : from_bf16(static_cast<const uint16_t*>(data)[i]);
}

void store(void* data, DType dtype, int64_t i, double value) {
  if (dtype == DType::f32)
    static_cast<float*>(data)[i] = static_cast<float>(value);
  else
    static_cast<uint16_t*>(data)[i] = to_bf16(static_cast<float>(value));
  emulator::Allocation* written = emulator::global_memory().find(reinterpret_cast<uint64_t>(data));
  check(written != nullptr, "a convolution's result must be in device memory");
  const auto bytes = static_cast<uint64_t>(byte_size(dtype));
  const uint64_t first = reinterpret_cast<uint64_t>(data) + static_cast<uint64_t>(i) * bytes - written->first;
  if (written->written != nullptr) std::memset(written->written.get() + first, 1, bytes);
}

int64_t at(const CudnnTensor& t, int64_t a, int64_t b, int64_t c, int64_t d) {
  return a * t.strides[0] + b * t.strides[1] + c * t.strides[2] + d * t.strides[3];
}

/// Calls f(place in x, in w, in y) for every product of a pixel and a weight.
template <class F>
void for_each_product(const CudnnConvolution& v, const F& f) {
  const Shape &x = v.x.dims, &w = v.w.dims, &y = v.y.dims;
  const int64_t groups = x[1] / w[1], of_group = y[1] / groups;
  for (int64_t n = 0; n < y[0]; ++n)
    for (int64_t k = 0; k < y[1]; ++k)
      for (int64_t p = 0; p < y[2]; ++p)
        for (int64_t q = 0; q < y[3]; ++q)
          for (int64_t c = 0; c < w[1]; ++c)
            for (int64_t r = 0; r < w[2]; ++r)
              for (int64_t s = 0; s < w[3]; ++s) {
                const int64_t h = p * v.stride[0] + r * v.dilation[0] - v.before[0];
                const int64_t u = q * v.stride[1] + s * v.dilation[1] - v.before[1];
                if (h < 0 || u < 0 || h >= x[2] || u >= x[3]) continue;
                const int64_t channel = k / of_group * w[1] + c;
                f(at(v.x, n, channel, h, u), at(v.w, k, c, r, s), at(v.y, n, k, p, q));
              }
}

class LoopPlan : public CudnnPlan {
 public:
  explicit LoopPlan(CudnnConvolution convolution) : v_(std::move(convolution)) {}

  int64_t workspace() const override { return 0; }

  void run(CudaStream, const std::vector<const void*>& tensors, void*) const override {
    emulator::submit([this, tensors] {
      emulator::settle();
      compute(tensors);
    });
  }

 private:
  void compute(const std::vector<const void*>& tensors) const {
    using Kind = CudnnConvolution::Kind;
    const CudnnTensor& result = v_.kind == Kind::forward ? v_.y : v_.kind == Kind::data ? v_.x : v_.w;
    std::vector<double> sums(static_cast<size_t>(num_elements(result.dims)));
    for_each_product(v_, [&](int64_t x, int64_t w, int64_t y) {
      const auto product = [&](int64_t first, int64_t second) {
        return double{element(tensors[0], v_.dtype, first)} * element(tensors[1], v_.dtype, second);
      };
      if (v_.kind == Kind::forward) sums[static_cast<size_t>(y)] += product(x, w);
      if (v_.kind == Kind::data) sums[static_cast<size_t>(x)] += product(y, w);
      if (v_.kind == Kind::weight) sums[static_cast<size_t>(w)] += product(y, x);
    });
    auto* out = const_cast<void*>(tensors[2]);
    const DType type = v_.kind == Kind::weight ? v_.w_dtype : v_.dtype;
    for (size_t i = 0; i < sums.size(); ++i) store(out, type, static_cast<int64_t>(i), sums[i]);
  }

  CudnnConvolution v_;
};

}  // namespace

const std::string& cudnn_fault() {
  static const std::string none;
  return none;
}

CudnnPlanPtr cudnn_plan(const CudnnAttention&) { return nullptr; }

CudnnPlanPtr cudnn_plan(const CudnnConvolution& convolution) {
  ++count.convolutions;
  return std::make_shared<LoopPlan>(convolution);
}

}  // namespace trainctl::cuda
