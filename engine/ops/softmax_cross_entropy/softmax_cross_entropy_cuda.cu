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

/// The loss of a row, log(sum_c e^x[c]) - x[label]. `others` has S, the sum of e^(x[c] - top) over the classes c other
/// than the label's. With p = e^(label_logit - top), which is label_power = 2^label_exponent:
///
///   loss = log(S + p) + (top - label_logit)
///        = log(1 + S / p)                      used if p > S, where the first form would cancel
__device__ double row_loss(const Exponentials& others, float label_logit, float label_exponent, float label_power) {
  // S and p are relative to a power of 2 that is only nearly e^top (Exponentials), and so is the label's exponent. But
  // if the top is far from 0, the exponent is not log2(p), and that of a logit far below the top is beyond f32.
  const bool has_no_exponent = others.far() || label_exponent < -1e30f;
  const double below_top = has_no_exponent ? double{others.top} - label_logit : double{-label_exponent * kLn2};
  return label_power > others.sum ? log1pf(others.sum * power_of_two(-label_exponent))
                                  : logf(others.sum + label_power) + below_top;
}

/// If a pack has element `label`, sets it to `by` and returns its old value, else 0.
template <int W>
__device__ float replace_label(int label, int place, Pack<W>& a, float by) {
  float replaced = 0;
  if (static_cast<unsigned>(label - place) >= W) return replaced;
#pragma unroll
  for (int j = 0; j < W; ++j) {
    const float v = a.v[j];  // read unconditionally: else the compiler reads a.v[label - place] from local memory
    replaced = j == label - place ? v : replaced;
    a.v[j] = j == label - place ? by : v;
  }
  return replaced;
}

/// Most threads of a block. The loss of f32 rows in registers without a gradient is never launched with 768: the bound
/// limits it to 80 registers, so that six blocks of 128 threads run at once.
template <int V, bool kInRegisters, bool kGrad>
inline constexpr int kLossThreads = V == 4 && kInRegisters && !kGrad ? 768 : kRowThreads<kInRegisters, 1>;

/// Reads a row: adds the exponentials of all classes but the label's to `others`, and sets `label_logit` to the label's
/// logit. With other targets `sum` becomes the sum of this thread's logits.
template <bool kPlain, bool kInRegisters, bool kGrad, int V, class X, class LoadNext>
__device__ __forceinline__ void read_exponentials(const RowPart<V>& part, int32_t label, X& x, Exponentials& others,
                                                  float& label_logit, float& sum, LoadNext load_next) {
  const auto add_to_sum = [&](const auto& a) {
    if constexpr (!kPlain) {
      for (const float v : a.v) sum += v;
    }
  };
  if constexpr (kInRegisters) {
    if constexpr (!kPlain)
      read_row(
          part, [&](int, const auto& a) { add_to_sum(a); }, x);
    label_logit = x.exchange(part, label, -INFINITY);
    others.add_row(part, x);
    if constexpr (!kGrad) load_next();  // the next row loads during this one's reduction
  } else {
    read_row(
        part,
        [&](int place, auto a) {
          add_to_sum(a);
          label_logit += replace_label(label, place, a, -INFINITY);
          others.add(a.v);
        },
        x);
  }
}

/// Writes the gradient of a row; `scale`: that of the row's loss.
template <bool kPlain, int V, class T, class X>
__device__ __forceinline__ void write_logit_grad(const RowPart<V>& part, bool valid, bool counted, int32_t label,
                                                 int64_t classes, const Exponentials& others, float label_power,
                                                 float scale, const Targets& targets, Ref<T> dlogits, X& x) {
  const float share = scale / (others.sum + label_power), label_share = -share * others.sum;
  const float smoothing_scale = kPlain ? 0.0f : scale * targets.smoothing,
              smoothing_of_class = smoothing_scale / static_cast<float>(classes);
  const float label_grad = kPlain ? label_share : counted ? label_share + (smoothing_scale - smoothing_of_class) : 0.0f;
  write_row(
      part, valid, dlogits,
      [&](int place, auto a) {
        for (float& v : a.v) {
          const float softmax_grad = others.of(v) * share;
          v = kPlain ? softmax_grad : counted ? softmax_grad - smoothing_of_class : 0.0f;
        }
        replace_label(label, place, a, label_grad);
        return a;
      },
      x);
}

/// The loss, the gradient, or both in one pass over the logits, which the gradient may overwrite. The label's
/// exponential is left out of the others' sum, so that a probability near 1 loses no digits.
/// kPlain: the targets are just the labels' classes; the code of others would take registers. A gradient may be wanted
/// without the loss; then `loss` has no output.
template <int V, bool kInRegisters, class T, bool kGrad, bool kPlain>
__global__ void __launch_bounds__(kLossThreads<V, kInRegisters, kGrad>, kGrad ? kRowBlocks<V, kInRegisters> : 1)
    loss_kernel(Rows rows, Ref<T> logits, const int32_t* labels, SumOutput loss, Parts parts, Ref<T> dlogits,
                float scale, Targets targets, const StepScalars* scalars) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const bool wants_loss = !kGrad || loss.out.p != nullptr;
  const float weight = kPlain ? 1.0f : targets.weight(scalars);
  if constexpr (!kPlain) scale *= weight;
  if constexpr (kGrad) scale *= scalars->loss_scale;
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
  over_rows_ahead<V>(group, rows, start, [&](const RowPart<V>& part, int64_t, bool valid, auto load_next) {
    const bool counted = counts;  // load_next() reads the next row's label
    if (label < 0 || label >= rows.n)
      data_is_wrong(
          "softmax_cross_entropy: the data contains a label that is not a "
          "class of the logits");
    Exponentials others;
    [[maybe_unused]] float mean_logit = 0;  // at first the sum of this thread's logits; for label smoothing
    float label_logit = 0;  // taken from the thread that has it: a separate load would wait for the label
    read_exponentials<kPlain, kInRegisters, kGrad>(part, label, x, others, label_logit, mean_logit, load_next);
    others.combine(group, label_logit);
    if constexpr (!kPlain) mean_logit = group.sum(mean_logit) / static_cast<float>(rows.n);
    if (label_logit > others.top) others.raise(label_logit);
    const float label_exponent = others.exponent(label_logit), label_power = power_of_two(label_exponent);
    if (wants_loss && valid && counted && group.lane() == 0) {
      total += row_loss(others, label_logit, label_exponent, label_power);
      if constexpr (!kPlain) total += double{targets.smoothing} * (double{label_logit} - mean_logit);
    }
    if constexpr (kGrad)
      write_logit_grad<kPlain>(part, valid, counted, label, rows.n, others, label_power, scale, targets, dlogits, x);
    if constexpr (kGrad || !kInRegisters) load_next();
  });
  if (!wants_loss) return;
  total = sum_of_group(total, static_cast<int>(blockDim.x));
  if (gridDim.x > 1) {
    if (threadIdx.x == 0) parts.memory[blockIdx.x] = total;
    if (!ends_last(parts.tickets, gridDim.x)) return;
    total = sum_of_parts(parts);
  }
  if (threadIdx.x == 0) loss.write(0, kPlain ? total : total * weight);
}

// Kernels for a part of the classes. `stats` of all parts is [parts, rows, 3 or, for label smoothing, 4].

/// Statistics of each row of this rank's classes, [rows, 3 or 4]: the largest other logit, the sum of the others'
/// exponentials relative to it, the label's logit (-inf on other ranks), and with smoothing the sum of all logits.
template <int V, bool kInRegisters, class T>
__global__ void __launch_bounds__(kRowThreads<kInRegisters, 1>)
    stats_kernel(Rows rows, Ref<T> logits, const int32_t* labels, int64_t offset, int64_t classes, float* stats,
                 bool smoothing, Targets targets) {
  wait_for_kernel_before();
  let_next_kernel_start();
  RowGroup group(rows.group);
  RowOperand<V, T, kInRegisters, 0> x(logits, rows, group);
  over_rows<V>(group, rows, [&](const RowPart<V>& part, int64_t row, bool valid) {
    x.start(part);
    const int64_t row_label = labels[row], local_label = row_label - offset;
    const bool counts = targets.counts(labels[row]);
    if (counts && (row_label < 0 || row_label >= classes))
      data_is_wrong("softmax_cross_entropy: the data contains a label that is not a class of the logits");
    const bool is_local = counts && local_label >= 0 && local_label < rows.n;
    const int label = is_local ? static_cast<int>(local_label) : rows.n;  // the place of no element
    float label_logit = 0, total = 0;
    const auto add_to_total = [&](const auto& a) {
      if (smoothing) {
        for (const float v : a.v) total += v;
      }
    };
    if constexpr (kInRegisters) {
      if (smoothing) {
        read_row(
            part, [&](int, const auto& a) { add_to_total(a); }, x);
      }
      label_logit = x.exchange(part, label, -INFINITY);
    }
    Exponentials others;
    others.sum_row(group, part, x, [&](int place, auto& a) {
      add_to_total(a);
      label_logit += replace_label(label, place, a, -INFINITY);
    });
    float sums[2] = {label_logit, total};
    group.sum(sums);
    if (!valid || group.lane() != 0) return;
    float* const to = stats + (smoothing ? 4 : 3) * row;
    to[0] = others.top;
    to[1] = others.sum;
    to[2] = is_local ? sums[0] : -INFINITY;
    if (smoothing) to[3] = sums[1];
  });
}

/// The statistics of all parts.
struct Statistics {
  const float* memory;
  int parts, numbers;
  int64_t rows;
  float share_of_class;  ///< 1 / classes
};

/// The statistics of a row, combined from those of all parts.
struct RowOfParts {
  Exponentials others;
  float label_logit = -INFINITY, mean_logit = 0, label_exponent, label_power;

  __device__ RowOfParts(const Statistics& stats, int64_t row)
      : others(exponentials_of_parts(stats.memory, stats.parts, stats.rows, stats.numbers, row)) {
    for (int p = 0; p < stats.parts; ++p) {
      const float* const of_part = stats.memory + (p * stats.rows + row) * stats.numbers;
      if (of_part[2] != -INFINITY) label_logit = of_part[2];
      if (stats.numbers > 3) mean_logit += of_part[3] * stats.share_of_class;
    }
    if (label_logit > others.top) others.raise(label_logit);
    label_exponent = others.exponent(label_logit);
    label_power = power_of_two(label_exponent);
  }
};

constexpr int kApplyThreads = 128;

/// The loss, from the statistics of all ranks' classes.
__global__ void __launch_bounds__(kApplyThreads)
    apply_kernel(Statistics stats, const int32_t* labels, SumOutput loss, Parts parts, Targets targets,
                 const StepScalars* scalars) {
  wait_for_kernel_before();
  let_next_kernel_start();
  double total = 0;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kApplyThreads;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kApplyThreads + threadIdx.x; row < stats.rows; row += step) {
    if (!targets.counts(labels[row])) continue;
    const RowOfParts all(stats, row);
    total += row_loss(all.others, all.label_logit, all.label_exponent, all.label_power);
    if (targets.smoothing != 0) total += double{targets.smoothing} * (double{all.label_logit} - all.mean_logit);
  }
  total = sum_of_group(total, kApplyThreads);
  if (gridDim.x > 1) {
    if (threadIdx.x == 0) parts.memory[blockIdx.x] = total;
    if (!ends_last(parts.tickets, gridDim.x)) return;
    total = sum_of_parts(parts);
  }
  if (threadIdx.x == 0) loss.write(0, total * targets.weight(scalars));
}

/// The gradient of this rank's classes, from the statistics of all ranks' classes.
template <int V, bool kInRegisters, class T>
__global__ void __launch_bounds__(kRowThreads<kInRegisters, 1>, kRowBlocks<V, kInRegisters>)
    grad_apply_kernel(Rows rows, Ref<T> logits, const int32_t* labels, int64_t offset, Statistics stats, Ref<T> dlogits,
                      float scale, Targets targets, const StepScalars* scalars) {
  wait_for_kernel_before();
  let_next_kernel_start();
  RowGroup group(rows.group);
  RowOperand<V, T, kInRegisters> x(logits, rows, group);
  scale *= targets.weight(scalars) * scalars->loss_scale;
  const float smoothing_scale = scale * targets.smoothing, smoothing_of_class = smoothing_scale * stats.share_of_class;
  over_rows<V>(group, rows, [&](const RowPart<V>& part, int64_t row, bool valid) {
    x.start(part);
    const int64_t local_label = labels[row] - offset;
    const bool counts = targets.counts(labels[row]);
    const int label = local_label >= 0 && local_label < rows.n ? static_cast<int>(local_label) : rows.n;
    const RowOfParts all(stats, row);
    const float share = scale / (all.others.sum + all.label_power);
    const float label_grad = counts ? smoothing_scale - smoothing_of_class - share * all.others.sum : 0.0f;
    read_row(
        part, [](int, const auto&) {}, x);
    write_row(
        part, valid, dlogits,
        [&](int place, auto a) {
          for (float& v : a.v) v = counts ? all.others.of(v) * share - smoothing_of_class : 0.0f;
          replace_label(label, place, a, label_grad);
          return a;
        },
        x);
  });
}

// Launchers

/// Loss and gradient in one pass over the rows of logits; kGrad: the gradient is wanted.
template <bool kGrad, bool kPlain>
CudaKernel prepare_targets(const CudaKernelCall& call, bool wants_loss, const char* name) {
  const TensorArg &logits = call.in[0], &labels = call.in[1], &dlogits = kGrad ? call.out.back() : logits;
  const int64_t n = logits.shape.back();
  if (logits.size() == 0) {
    if (wants_loss && !call.out[0].accumulate) return find_cuda_kernel("zero")->prepare(call);
    return [](CudaStream) {};
  }
  const auto prepare_rows = [&]<class T>(T, auto pack, auto in_registers, RowsLaunch how) {
    const double scale = call.attrs.number("scale", 1.0);
    const SumOutput loss = wants_loss ? SumOutput::of(call, 0, scale) : SumOutput{};
    if (wants_loss && how.rows.count * how.rows.group <= kMaxRowThreads &&
        how.rows.group <= 32) {  // one block is enough
      how.blocks = 1;
      how.threads = static_cast<unsigned>(ceil_div(how.rows.count * how.rows.group, 32) * 32);
    }
    const auto kernel = loss_kernel<pack, in_registers, T, kGrad, kPlain>;
    ask_for_shared(kernel, how.shared_bytes(), name);
    if (wants_loss) {  // the last block adds all parts: no more blocks than run at once
      const int64_t at_once = blocks_at_once(kernel, how.threads, how.shared_bytes(), name);
      how.blocks = static_cast<unsigned>(std::min<int64_t>(how.blocks, at_once));
    }
    const Split split(call, wants_loss ? how.blocks : 1, 1, 1);
    if (wants_loss) how.blocks = static_cast<unsigned>(split.splits);
    return CudaKernel([=, x = ref<T>(logits), dx = ref<T>(dlogits), to = labels.as<int32_t>(),
                       targets = Targets::of(call.attrs), scalars = call.scalars](CudaStream stream) {
      launch(kernel, how.blocks, how.threads, how.shared_bytes(), stream, name, how.rows, x, to, loss, split.parts(1),
             dx, static_cast<float>(scale), targets, scalars);
    });
  };
  return with_rows({&logits, &dlogits}, logits.size() / n, n, kGrad ? 1 : 0, {&logits, &dlogits}, 0, prepare_rows);
}

template <bool kGrad>
CudaKernel prepare_loss(const CudaKernelCall& call, bool wants_loss, const char* name) {
  return Targets::of(call.attrs).plain() ? prepare_targets<kGrad, true>(call, wants_loss, name)
                                         : prepare_targets<kGrad, false>(call, wants_loss, name);
}

CudaKernel prepare_softmax_cross_entropy(const CudaKernelCall& call) {
  return prepare_loss<false>(call, true, "softmax_cross_entropy");
}
CudaKernel prepare_softmax_cross_entropy_grad(const CudaKernelCall& call) {
  return prepare_loss<true>(call, false, "softmax_cross_entropy_grad");
}
CudaKernel prepare_softmax_cross_entropy_with_grad(const CudaKernelCall& call) {
  return prepare_loss<true>(call, true, "softmax_cross_entropy_with_grad");
}

Statistics statistics(const CudaKernelCall& call) {
  const TensorArg &logits = call.in[0], &stats = call.in[2];
  check(stats.dtype == DType::f32, "statistics are f32");
  const int64_t parts = stats.shape[0], numbers = stats.shape.back();
  return {stats.as<float>(), static_cast<int>(parts), static_cast<int>(numbers), stats.size() / (parts * numbers),
          1.0f / static_cast<float>(logits.shape.back() * parts)};
}

CudaKernel prepare_softmax_cross_entropy_stats(const CudaKernelCall& call) {
  const TensorArg &logits = call.in[0], &labels = call.in[1], &stats = call.out[0];
  const int64_t n = logits.shape.back(), count = n == 0 ? 0 : logits.size() / n;
  check(stats.dtype == DType::f32, "statistics are f32");
  const auto prepare = [&]<class T>(T, auto pack, auto in_registers, const RowsLaunch& how) {
    return launch_rows(stats_kernel<pack, in_registers, T>, how, "softmax_cross_entropy_stats", how.rows,
                       ref<T>(logits), labels.as<int32_t>(), logits.offset.back(), logits.global_shape.back(),
                       stats.as<float>(), stats.shape.back() > 3, Targets::of(call.attrs));
  };
  return with_rows({&logits}, count, n, 0, {&logits}, 0, prepare);
}

CudaKernel prepare_softmax_cross_entropy_apply(const CudaKernelCall& call) {
  const char* const name = "softmax_cross_entropy_apply";
  const Statistics stats = statistics(call);
  const SumOutput loss = SumOutput::of(call, 0, call.attrs.number("scale", 1.0));
  const int64_t at_once = blocks_at_once(apply_kernel, kApplyThreads, 0, name);
  const Split split(call, std::clamp<int64_t>(ceil_div(stats.rows, kApplyThreads), 1, at_once), 1, 1);
  return [=, labels = call.in[1].as<int32_t>(), targets = Targets::of(call.attrs),
          scalars = call.scalars](CudaStream stream) {
    launch(apply_kernel, static_cast<unsigned>(split.splits), kApplyThreads, 0, stream, name, stats, labels, loss,
           split.parts(1), targets, scalars);
  };
}

CudaKernel prepare_softmax_cross_entropy_grad_apply(const CudaKernelCall& call) {
  const TensorArg &logits = call.in[0], &labels = call.in[1], &dlogits = call.out[0];
  const int64_t n = logits.shape.back(), count = n == 0 ? 0 : logits.size() / n;
  const auto prepare_rows = [&]<class T>(T, auto pack, auto in_registers, const RowsLaunch& how) {
    return launch_rows(grad_apply_kernel<pack, in_registers, T>, how, "softmax_cross_entropy_grad_apply", how.rows,
                       ref<T>(logits), labels.as<int32_t>(), logits.offset.back(), statistics(call), ref<T>(dlogits),
                       static_cast<float>(call.attrs.number("scale", 1.0)), Targets::of(call.attrs), call.scalars);
  };
  return with_rows({&logits, &dlogits}, count, n, 1, {&logits, &dlogits}, 0, prepare_rows);
}

}  // namespace

extern const CudaKernels softmax_cross_entropy_cuda = {
    {"softmax_cross_entropy", prepare_softmax_cross_entropy, kTakesF16},
    {"softmax_cross_entropy_grad", prepare_softmax_cross_entropy_grad, kTakesF16},
    {"softmax_cross_entropy_with_grad", prepare_softmax_cross_entropy_with_grad, kTakesF16},
    {"softmax_cross_entropy_stats", prepare_softmax_cross_entropy_stats, kTakesF16},
    {"softmax_cross_entropy_apply", prepare_softmax_cross_entropy_apply, kTakesF16},
    {"softmax_cross_entropy_grad_apply", prepare_softmax_cross_entropy_grad_apply, kTakesF16}};

}  // namespace trainctl
