// loss = scale * sum over rows of log(sum_c e^x[c]) - x[label].  dx = scale * (softmax(x) - onehot(label)).
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/data_check_cuda.cuh"
#include "engine/ops/cuda/sums_cuda.cuh"
#include "engine/ops/softmax/exponentials_cuda.cuh"
#include "engine/ops/softmax_cross_entropy/targets.h"

namespace trainctl {
namespace {

constexpr float kLn2 = 0.6931471805599453f;

// Kernels

/// Most threads of a block. The loss of f32 rows in registers without a gradient is never launched with 768: the bound
/// limits it to 80 registers, so that six blocks of 128 threads run at once.
template <int V, bool kInRegisters, bool kGrad>
inline constexpr int kLossThreads = V == 4 && kInRegisters && !kGrad ? 768 : kRowThreads<kInRegisters, 1>;

/// The loss, the gradient, or both in one pass over the logits, which the gradient may overwrite. The label's
/// exponential is left out of the others' sum, so that a probability near 1 loses no digits.
/// kPlain: the targets are the labels' classes alone; the code of others would take registers.
template <int V, bool kInRegisters, class T, bool kLoss, bool kGrad, bool kPlain>
__global__ void __launch_bounds__(kLossThreads<V, kInRegisters, kGrad>, kGrad ? kRowBlocks<V, kInRegisters> : 1)
    loss_kernel(Rows rows, Ref<T> logits, const int32_t* labels, SumOutput loss, Parts parts, Ref<T> dlogits,
                float scale, Targets targets, const StepScalars* scalars) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const float weight = kPlain ? 1.0f : targets.weight(scalars);
  if constexpr (!kPlain) scale *= weight;
  RowGroup group(rows.group);
  RowOperand<V, T, kInRegisters, kGrad ? 1 : 0> x(logits, rows, group);
  double total = 0;
  int32_t label = 0;
  bool counts = true;
  const auto start = [&](const RowPart<V>& part, int64_t row) {
    label = labels[row];
    if constexpr (!kPlain) {
      counts = targets.counts(label);
      if (!counts) label = 0;
    }
    x.start(part);  // before the first use of the label
  };
  over_rows_ahead<V>(group, rows, start, [&](const RowPart<V>& part, int64_t, bool valid, auto go_on) {
    const bool counted = counts;  // go_on() reads the next row's label
    if (label < 0 || label >= rows.n) data_is_wrong("softmax_cross_entropy: a label is not a class of the logits");
    const auto replace_label = [&]<int W>(int place, Pack<W>& a, float by) {
      float replaced = 0;
      if (static_cast<unsigned>(label - place) >= W) return replaced;
#pragma unroll
      for (int j = 0; j < W; ++j) {
        const float v = a.v[j];  // read unconditionally: else the compiler reads a.v[label - place] from local memory
        replaced = j == label - place ? v : replaced;
        a.v[j] = j == label - place ? by : v;
      }
      return replaced;
    };
    Exponentials others;
    float mean = 0;      // of the logits; for label smoothing
    const auto add_to_mean = [&](const auto& a) {
      if constexpr (!kPlain) {
        for (const float v : a.v) mean += v;
      }
    };
    float of_label = 0;  // taken from the thread that has it: a separate load would wait for the label
    if constexpr (kInRegisters) {
      if constexpr (!kPlain) read_row(part, [&](int, const auto& a) { add_to_mean(a); }, x);
      of_label = x.exchange(part, label, -INFINITY);
      others.add_row(part, x);
      if constexpr (!kGrad) go_on();  // the next row loads during this one's reduction
    } else {
      read_row(
          part,
          [&](int place, auto a) {
            add_to_mean(a);
            of_label += replace_label(place, a, -INFINITY);
            others.add(a.v);
          },
          x);
    }
    others.combine(group, of_label);
    if constexpr (!kPlain) mean = group.sum(mean) / static_cast<float>(rows.n);
    if (of_label > others.top) others.raise(of_label);
    const float sum_of_others = others.sum, off = others.exponent(of_label), power_of_label = power_of_two(off);
    if (kLoss && valid && counted && group.lane() == 0) {
      // No cancellation for a likely label. Far from 0, `off` is not a power of two's exponent, or is beyond f32.
      const bool far = others.far() || off < -1e30f;
      const double below_top = far ? double{others.top} - of_label : double{-off * kLn2};
      total += power_of_label > sum_of_others ? log1pf(sum_of_others * power_of_two(-off))
                                              : logf(sum_of_others + power_of_label) + below_top;
      if constexpr (!kPlain) total += double{targets.smoothing} * (double{of_label} - mean);
    }
    if constexpr (kGrad) {
      const float share = scale / (sum_of_others + power_of_label), of_others = -share * sum_of_others;
      const float of_smoothing = kPlain ? 0.0f : scale * targets.smoothing, of_each = of_smoothing / static_cast<float>(rows.n);
      const float at_label = kPlain ? of_others : counted ? of_others + (of_smoothing - of_each) : 0.0f;
      write_row(
          part, valid, dlogits,
          [&](int place, auto a) {
            for (float& v : a.v) {
              const float of_softmax = others.of(v) * share;
              v = kPlain ? of_softmax : counted ? of_softmax - of_each : 0.0f;
            }
            replace_label(place, a, at_label);
            return a;
          },
          x);
    }
    if constexpr (kGrad || !kInRegisters) go_on();
  });
  if constexpr (!kLoss) return;
  total = sum_of_group(total, static_cast<int>(blockDim.x));
  if (gridDim.x > 1) {
    if (threadIdx.x == 0) parts.memory[blockIdx.x] = total;
    if (!ends_last(parts.tickets, gridDim.x)) return;
    total = sum_of_parts(parts);
  }
  if (threadIdx.x == 0) loss.write(0, kPlain ? total : total * weight);
}

// Launchers

template <bool kLoss, bool kGrad, bool kPlain>
CudaKernel prepare_targets(const CudaKernelCall& call, const char* name) {
  const TensorArg &logits = call.in[0], &labels = call.in[1], &dlogits = kGrad ? call.out.back() : logits;
  const int64_t n = logits.shape.back();
  if (logits.size() == 0) {
    if (kLoss && !call.out[0].accumulate) return find_cuda_kernel("zero")->prepare(call);
    return [](CudaStream) {};
  }
  return with_common_type({&logits, &dlogits}, [&](auto t) {
    using T = decltype(t);
    const auto prepare_rows = [&](auto pack, auto in_registers, RowsLaunch how) {
      const double scale = call.attrs.number("scale", 1.0);
      const SumOutput loss = kLoss ? SumOutput::of(call, 0, scale) : SumOutput{};
      if (kLoss && how.rows.count * how.rows.group <= kMaxRowThreads && how.rows.group <= 32) {  // one block is enough
        how.blocks = 1;
        how.threads = static_cast<unsigned>(ceil_div(how.rows.count * how.rows.group, 32) * 32);
      }
      const auto kernel = loss_kernel<pack, in_registers, T, kLoss, kGrad, kPlain>;
      ask_for_shared(kernel, how.shared_bytes(), name);
      if (kLoss) {  // the last block adds all parts: no more blocks than run at once
        const int64_t at_once = blocks_at_once(kernel, how.threads, how.shared_bytes(), name);
        how.blocks = static_cast<unsigned>(std::min<int64_t>(how.blocks, at_once));
      }
      const Split split(call, kLoss ? how.blocks : 1, 1, 1);
      if (kLoss) how.blocks = static_cast<unsigned>(split.splits);
      return CudaKernel([=, x = ref<T>(logits), dx = ref<T>(dlogits), to = labels.as<int32_t>(),
                         targets = Targets::of(call.attrs), scalars = call.scalars](CudaStream stream) {
        launch(kernel, how.blocks, how.threads, how.shared_bytes(), stream, name, how.rows, x, to, loss, split.parts(1),
               dx, static_cast<float>(scale), targets, scalars);
      });
    };
    return with_rows<T>(logits.size() / n, n, kGrad ? 1 : 0, {&logits, &dlogits}, 0, prepare_rows);
  });
}

template <bool kLoss, bool kGrad>
CudaKernel prepare(const CudaKernelCall& call, const char* name) {
  return Targets::of(call.attrs).plain() ? prepare_targets<kLoss, kGrad, true>(call, name)
                                         : prepare_targets<kLoss, kGrad, false>(call, name);
}

CudaKernel prepare_softmax_cross_entropy(const CudaKernelCall& call) {
  return prepare<true, false>(call, "softmax_cross_entropy");
}
CudaKernel prepare_softmax_cross_entropy_grad(const CudaKernelCall& call) {
  return prepare<false, true>(call, "softmax_cross_entropy_grad");
}
CudaKernel prepare_softmax_cross_entropy_with_grad(const CudaKernelCall& call) {
  return prepare<true, true>(call, "softmax_cross_entropy_with_grad");
}

}  // namespace

extern const CudaKernels softmax_cross_entropy_cuda = {
    {"softmax_cross_entropy", prepare_softmax_cross_entropy},
    {"softmax_cross_entropy_grad", prepare_softmax_cross_entropy_grad},
    {"softmax_cross_entropy_with_grad", prepare_softmax_cross_entropy_with_grad}};

}  // namespace trainctl
