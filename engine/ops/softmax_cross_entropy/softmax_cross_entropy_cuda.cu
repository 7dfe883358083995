// loss = scale * sum over rows of log(sum_c e^x[c]) - x[label].  dx = scale * (softmax(x) - onehot(label)).
#include "engine/ops/cuda_kernels.h"
#include "engine/ops/data_check_cuda.cuh"
#include "engine/ops/rows_cuda.cuh"
#include "engine/ops/sums_cuda.cuh"

namespace trainctl {
namespace {

/// What a row is from its label's point of view. `others`: the exponentials' sum without the label's, so that a
/// probability near 1 loses no digits.
struct RowLoss {
  int32_t label;
  float of_label, top, others;

  __device__ float sum() const { return others + __expf(of_label - top); }
};

/// Reads the row; a class that does not exist stops the program.
template <int V, class T>
__device__ RowLoss read_row(RowGroup& group, const Rows& rows, Ref<T> logits, const int32_t* labels, int64_t row,
                            StashedRow<V, T>& from) {
  const int32_t label = labels[row];
  if (label < 0 || label >= rows.n) data_is_wrong("softmax_cross_entropy: a label is no class of the logits");
  const float of_label = value(logits, row * rows.n + label);
  Exponentials e;
  read_packs<V == 1 ? 8 : 4>(
      group, rows, [&](int p) { return from.first(p); },
      [&](int p, const Raw<T, V>& raw) {
        float v[V];
        unpack(raw, v);
        from.keep(p, v);
        const int own = label - p * V;  // the label's place in this pack, if it is there
        e.add(v, [&](int j) { return j != own; });
      });
  e.combine(group);
  return {label, of_label, e.top, e.sum};
}

// Kernels

/// The loss, the gradient, or both in one pass over the logits, on which the gradient may lie.
template <int V, class T, bool kLoss, bool kGrad>
__global__ void __launch_bounds__(kMaxRowThreads)
    loss_kernel(Rows rows, Ref<T> logits, const int32_t* labels, SumOutput loss, Parts parts, Ref<T> dlogits,
                float scale) {
  wait_for_kernel_before();
  let_next_kernel_start();
  RowGroup group(rows.group);
  const Stash stash(rows, group, 0, 1);
  double total = 0;
  over_rows(group, rows, [&](int64_t row, bool valid) {
    StashedRow<V, T> from(logits, row * rows.n, stash);
    const RowLoss r = read_row<V>(group, rows, logits, labels, row, from);
    if (kLoss && valid && group.lane() == 0) {
      const double of_label = exp(static_cast<double>(r.of_label) - r.top);
      total += log(static_cast<double>(r.others) + of_label) + (static_cast<double>(r.top) - r.of_label);
    }
    if constexpr (kGrad) {
      __syncwarp();  // all have read the label's logit before it is overwritten
      const float share = scale / r.sum(), of_label = -share * r.others;
      over_packs(group, rows, [&](int p) {
        float v[V];
        from.load_again(p, v);
        const int own = r.label - p * V;
        for (int j = 0; j < V; ++j) v[j] = j == own ? of_label : __expf(v[j] - r.top) * share;
        if (valid) store(dlogits, row * rows.n + static_cast<int64_t>(p) * V, v);
      });
    }
  });
  if constexpr (!kLoss) return;
  total = sum_of_group(total, static_cast<int>(blockDim.x));
  if (gridDim.x > 1) {
    if (threadIdx.x == 0) parts.memory[blockIdx.x] = total;
    if (!ends_last(parts.tickets, gridDim.x)) return;
    total = 0;
#pragma unroll 8
    for (unsigned i = threadIdx.x; i < gridDim.x; i += blockDim.x) total += __ldcg(&parts.memory[i]);
    total = sum_of_group(total, static_cast<int>(blockDim.x));
  }
  if (threadIdx.x == 0) loss.write(0, total);
}

// Launchers

template <bool kLoss, bool kGrad>
CudaKernel prepare(const CudaKernelCall& call, const char* name) {
  const TensorArg &logits = call.in[0], &labels = call.in[1], &dlogits = kGrad ? call.out.back() : logits;
  const int64_t n = logits.shape.back();
  if (logits.size() == 0) return [](CudaStream) {};
  return with_common_type({&logits, &dlogits}, [&](auto t) {
    using T = decltype(t);
    return with_row_pack<T>(n, {&logits, &dlogits}, [&](auto pack) {
      RowsLaunch how(logits.size() / n, n, pack, kGrad ? 1 : 0);
      const double scale = call.attrs.number("scale", 1.0);
      const SumOutput loss = kLoss ? SumOutput::of(call, 0, scale) : SumOutput{};
      if (kLoss && how.rows.count * how.rows.group <= kMaxRowThreads && how.rows.group <= 32) {  // one block does it
        how.blocks = 1;
        how.threads = static_cast<unsigned>(ceil_div(how.rows.count * how.rows.group, 32) * 32);
        how.shared_bytes = how.threads / static_cast<unsigned>(how.rows.group) *
                           static_cast<size_t>(how.rows.stash_floats) * sizeof(float);
      }
      // The last block adds up the others' parts: no more of them than run at once.
      if (kLoss)
        how.blocks = std::min<unsigned>(how.blocks, 2048 / how.threads * static_cast<unsigned>(multiprocessors()));
      const Split split(call, kLoss ? how.blocks : 1, 1, 1);
      if (kLoss) how.blocks = static_cast<unsigned>(split.splits);
      const auto kernel = loss_kernel<pack, T, kLoss, kGrad>;
      ask_for_shared(kernel, how.shared_bytes, name);
      return CudaKernel([=, x = ref<T>(logits), dx = ref<T>(dlogits), to = labels.as<int32_t>()](CudaStream stream) {
        launch(kernel, how.blocks, how.threads, how.shared_bytes, stream, name, how.rows, x, to, loss, split.parts(1),
               dx, static_cast<float>(scale));
      });
    });
  });
}

}  // namespace

CudaKernel prepare_softmax_cross_entropy_cuda(const CudaKernelCall& call) {
  return prepare<true, false>(call, "softmax_cross_entropy");
}
CudaKernel prepare_softmax_cross_entropy_grad_cuda(const CudaKernelCall& call) {
  return prepare<false, true>(call, "softmax_cross_entropy_grad");
}
CudaKernel prepare_softmax_cross_entropy_with_grad_cuda(const CudaKernelCall& call) {
  return prepare<true, true>(call, "softmax_cross_entropy_with_grad");
}

}  // namespace trainctl
