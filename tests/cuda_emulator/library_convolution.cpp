// Replaces cuDNN on the emulated GPU. Convolutions that cuDNN computes on a GPU are plain loops here, so that the code
// around them runs; they are counted, and reported as left out at the end. For attention the engine's own kernels run,
// unless a test sets the rule that the library supports it. Nothing is measured or kept.
#include <cmath>
#include <cstdio>
#include <cstring>

#include "engine/base/error.h"
#include "engine/graph/half.h"
#include "engine/ops/cuda/cudnn_plans.h"
#include "engine/ops/cuda/device_choices_cuda.h"
#include "tests/cuda_emulator/library_rules.h"
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
int runs = 0;

float element(const void* data, DType dtype, int64_t i) {
  if (dtype == DType::f32) return static_cast<const float*>(data)[i];
  float value = 0;
  halves_to_floats(dtype, static_cast<const uint16_t*>(data) + i, 1, &value);
  return value;
}

void store(void* data, DType dtype, int64_t i, double value) {
  const auto narrow = static_cast<float>(value);
  if (dtype == DType::f32)
    static_cast<float*>(data)[i] = narrow;
  else
    floats_to_halves(dtype, &narrow, 1, static_cast<uint16_t*>(data) + i);
  emulator::Allocation* written = emulator::global_memory().find(reinterpret_cast<uint64_t>(data));
  check(written != nullptr, "a convolution's result must be in device memory");
  const auto bytes = static_cast<uint64_t>(byte_size(dtype));
  const uint64_t first = reinterpret_cast<uint64_t>(data) + static_cast<uint64_t>(i) * bytes - written->first;
  if (written->written != nullptr) std::memset(written->written.get() + first, 1, bytes);
}

int64_t at(const CudnnTensor& t, int64_t a, int64_t b, int64_t c, int64_t d) {
  return a * t.strides[0] + b * t.strides[1] + c * t.strides[2] + d * t.strides[3];
}

/// Calls f(position in x, in w, in y) for every product of a pixel and a weight.
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
    ++runs;
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
    auto* out = const_cast<void*>(tensors.back());
    const DType type = v_.kind == Kind::weight ? v_.w_dtype : v_.dtype;
    for (size_t i = 0; i < sums.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      double value = sums[i];
      if (v_.bias) value += element(tensors[2], v_.dtype, at / v_.y.strides[1] % v_.y.dims[1]);
      store(out, type, at, v_.relu ? std::max(value, 0.0) : value);
    }
  }

  CudnnConvolution v_;
};

/// The list of engines: one engine or none, as the rules say.
class LoopEngines : public CudnnEngines {
 public:
  explicit LoopEngines(const CudnnConvolution& convolution) : v_(convolution) {
    const emulator::LibraryRules& rules = emulator::library_rules();
    const bool last = v_.x.strides[1] == 1 && is_half(v_.dtype);
    const bool odd = last && (v_.x.dims[1] % rules.channel_unit != 0 || v_.y.dims[1] % rules.channel_unit != 0);
    const bool apart = rules.only_fused && v_.kind == CudnnConvolution::Kind::forward && !v_.bias;
    const bool wide = !rules.wide_gradients && is_half(v_.dtype) && v_.w_dtype == DType::f32;
    if (!rules.convolutions || odd || apart || wide || v_.x.dims[0] > rules.most_images)
      fault_ = "the stand-in has no engine";
    else
      names_ = {"loops"};
  }
  CudnnPlanPtr plan(size_t) override {
    ++count.convolutions;
    return std::make_shared<LoopPlan>(v_);
  }

 private:
  CudnnConvolution v_;
};

/// A call of attention. Tensors are those of the signature; all of them are bf16 or f16, except the logs, which are
/// f32.
class LoopAttention : public CudnnPlan {
 public:
  explicit LoopAttention(CudnnAttention attention) : v_(std::move(attention)) {}

  int64_t workspace() const override { return 0; }

  void run(CudaStream, const std::vector<const void*>& tensors, void*) const override {
    ++runs;
    emulator::submit([this, tensors] {
      emulator::settle();
      for (int64_t b = 0; b < v_.q.dims[0]; ++b)
        for (int64_t g = 0; g < v_.k.dims[1]; ++g) v_.backward ? group_grad(tensors, b, g) : group(tensors, b, g);
    });
  }

 private:
  int64_t rows() const { return v_.q.dims[2]; }
  int64_t keys() const { return v_.k.dims[2]; }
  int64_t features() const { return v_.q.dims[3]; }
  int64_t heads_of_group() const { return v_.q.dims[1] / v_.k.dims[1]; }
  int64_t seen(int64_t row) const { return v_.causal ? row + 1 + (keys() - rows()) : keys(); }

  double get(const void* data, const CudnnTensor& t, int64_t b, int64_t h, int64_t row, int64_t i) const {
    return element(data, v_.dtype, at(t, b, h, row, i));
  }
  double dot(const void* x, const CudnnTensor& tx, int64_t hx, int64_t row, const void* y, const CudnnTensor& ty,
             int64_t hy, int64_t other, int64_t b) const {
    double sum = 0;
    for (int64_t i = 0; i < features(); ++i) sum += get(x, tx, b, hx, row, i) * get(y, ty, b, hy, other, i);
    return sum;
  }

  void group(const std::vector<const void*>& t, int64_t b, int64_t g) const {
    for (int64_t h = g * heads_of_group(); h < (g + 1) * heads_of_group(); ++h) {
      for (int64_t row = 0; row < rows(); ++row) {
        std::vector<double> weights, out(static_cast<size_t>(features()));
        double sum = 0;
        for (int64_t key = 0; key < seen(row); ++key) {
          weights.push_back(std::exp(double{v_.scale} * dot(t[0], v_.q, h, row, t[1], v_.k, g, key, b)));
          sum += weights.back();
        }
        for (size_t key = 0; key < weights.size(); ++key)
          for (size_t i = 0; i < out.size(); ++i)
            out[i] += weights[key] / sum * get(t[2], v_.v, b, g, static_cast<int64_t>(key), static_cast<int64_t>(i));
        for (size_t i = 0; i < out.size(); ++i)
          store(const_cast<void*>(t[3]), v_.dtype, at(v_.out, b, h, row, static_cast<int64_t>(i)), out[i]);
        store(const_cast<void*>(t[4]), DType::f32, at(v_.logs, b, h, row, 0), std::log(sum));
      }
    }
  }

  /// Adds the gradients of one group. `t` has the addresses of q, k, v, out, logs, dy, dq, dk and dv.
  void group_grad(const std::vector<const void*>& t, int64_t b, int64_t g) const {
    const auto count_of = [&](int64_t n) { return static_cast<size_t>(n * features()); };
    std::vector<double> dk(count_of(keys())), dv(count_of(keys()));
    for (int64_t h = g * heads_of_group(); h < (g + 1) * heads_of_group(); ++h) {
      for (int64_t row = 0; row < rows(); ++row) {
        std::vector<double> dq(static_cast<size_t>(features()));
        const double log = element(t[4], DType::f32, at(v_.logs, b, h, row, 0));
        const double mean = dot(t[5], v_.out, h, row, t[3], v_.out, h, row, b);
        for (int64_t key = 0; key < seen(row); ++key) {
          const double weight = std::exp(double{v_.scale} * dot(t[0], v_.q, h, row, t[1], v_.k, g, key, b) - log);
          const double slope = weight * (dot(t[5], v_.out, h, row, t[2], v_.v, g, key, b) - mean) * double{v_.scale};
          for (int64_t i = 0; i < features(); ++i) {
            const auto of_key = static_cast<size_t>(key * features() + i);
            dq[static_cast<size_t>(i)] += slope * get(t[1], v_.k, b, g, key, i);
            dk[of_key] += slope * get(t[0], v_.q, b, h, row, i);
            dv[of_key] += weight * get(t[5], v_.out, b, h, row, i);
          }
        }
        store_row(t[6], v_.q, b, h, row, dq.data());
      }
    }
    for (int64_t key = 0; key < keys(); ++key) {
      store_row(t[7], v_.dk.dims.empty() ? v_.k : v_.dk, b, g, key, dk.data() + key * features());
      store_row(t[8], v_.dv.dims.empty() ? v_.v : v_.dv, b, g, key, dv.data() + key * features());
    }
  }

  void store_row(const void* to, const CudnnTensor& tensor, int64_t b, int64_t h, int64_t row, const double* v) const {
    for (int64_t i = 0; i < features(); ++i) store(const_cast<void*>(to), v_.dtype, at(tensor, b, h, row, i), v[i]);
  }

  CudnnAttention v_;
};

}  // namespace

const std::string& cudnn_fault() {
  static const std::string none;
  return none;
}

/// The version text. Plans are kept for each version, so each set of rules has its own version.
std::string cudnn_version() {
  const emulator::LibraryRules& r = emulator::library_rules();
  return std::to_string(r.convolutions) + "." + std::to_string(r.channel_unit) + "." + std::to_string(r.most_images) +
         "." + std::to_string(r.only_fused) + "." + std::to_string(r.wide_gradients);
}

CudnnPlanPtr cudnn_plan(const CudnnAttention& attention) {
  const emulator::LibraryRules& rules = emulator::library_rules();
  const bool grouped = attention.q.dims[1] != attention.k.dims[1];
  if (!rules.attention || (attention.backward && grouped && !rules.grouped_gradients)) return nullptr;
  return std::make_shared<LoopAttention>(attention);
}

std::unique_ptr<CudnnEngines> cudnn_engines(const CudnnConvolution& convolution, int64_t) {
  return std::make_unique<LoopEngines>(convolution);
}

KeptChoices& choices_of_device(const std::string&, const std::string&) {
  static KeptChoices here("");  // where nothing can be kept the first candidate is taken
  return here;
}

}  // namespace trainctl::cuda

namespace trainctl::emulator {

LibraryRules& library_rules() {
  static LibraryRules rules;
  return rules;
}

int library_runs() { return cuda::runs; }

}  // namespace trainctl::emulator
