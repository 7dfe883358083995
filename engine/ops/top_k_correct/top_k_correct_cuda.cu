// The label's class is among the k largest if fewer than k others are ahead of it. A group of threads, at most a warp,
// takes a row; the last block adds the blocks' counts.
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/data_check_cuda.cuh"
#include "engine/ops/cuda/sums_cuda.cuh"
#include "engine/ops/softmax_cross_entropy/targets.h"

namespace trainctl {
namespace {

constexpr int kTopKThreads = 256;

// Kernels

/// A nan is ahead of every number, and every class is ahead of a label's nan.
template <class T>
__global__ void __launch_bounds__(kTopKThreads)
    top_k_correct_kernel(Ref<T> x, const int32_t* labels, int64_t rows, int classes, int group, int64_t k,
                         Targets targets, SumOutput correct, Parts parts) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int lane = static_cast<int>(threadIdx.x) % group, groups = kTopKThreads / group;
  double total = 0;
  // All threads of a warp make the same number of turns: they exchange sums.
  for (int64_t first = int64_t{blockIdx.x} * groups; first < rows; first += int64_t{gridDim.x} * groups) {
    const int64_t row = first + threadIdx.x / group;
    double ahead = 0;
    const int label = row < rows ? labels[row] : 0;
    const bool counts = row < rows && targets.counts(label);
    if (counts) {
      if (label < 0 || label >= classes)
        data_is_wrong(
            "top_k_correct: the data contains a label that is not a class "
            "of the predictions");
      const int64_t start = row * classes;
      const float own = value(x, start + label);
      int count = 0;
      for (int i = lane; i < classes; i += group) {
        const float other = value(x, start + i);
        count += i < label ? !(other < own) : i > label && !(other <= own);
      }
      ahead = count;
    }
    ahead = sum_of_group(ahead, group);
    if (lane == 0 && counts && ahead < static_cast<double>(k)) total += 1;
  }
  total = sum_of_group(total, kTopKThreads);
  if (gridDim.x > 1) {
    if (threadIdx.x == 0) parts.memory[blockIdx.x] = total;
    if (!ends_last(parts.tickets, gridDim.x)) return;
    total = sum_of_parts(parts);
  }
  if (threadIdx.x == 0) correct.write(0, total);
}

// Launchers

/// The number of rows whose label is among the k largest logits.
CudaKernel prepare_top_k_correct(const CudaKernelCall& call) {
  const TensorArg &x = call.in[0], &labels = call.in[1];
  const int64_t classes = x.shape.back(), rows = labels.size();
  if (x.size() == 0) {
    if (!call.out[0].accumulate) return find_cuda_kernel("zero")->prepare(call);
    return [](CudaStream) {};
  }
  int group = 1;
  while (group < 32 && group < classes) group *= 2;
  return with_common_type({&x}, [&](auto t) {
    using T = decltype(t);
    const auto kernel = top_k_correct_kernel<T>;
    const int64_t at_once = blocks_at_once(kernel, kTopKThreads, 0, "top_k_correct");
    const int64_t wanted = std::min<int64_t>(at_once, ceil_div(rows * group, kTopKThreads));
    const Split split(call, wanted, 1, 1);
    return CudaKernel([=, in = ref<T>(x), ids = labels.as<int32_t>(), k = call.attrs.integer("k", 1),
                       targets = Targets::of(call.attrs), correct = SumOutput::of(call, 0, 1.0)](CudaStream stream) {
      launch(kernel, static_cast<unsigned>(split.splits), kTopKThreads, 0, stream, "top_k_correct", in, ids, rows,
             static_cast<int>(classes), group, k, targets, correct, split.parts(1));
    });
  });
}

}  // namespace

extern const CudaKernels top_k_correct_cuda = {{"top_k_correct", prepare_top_k_correct, kTakesF16}};

}  // namespace trainctl
