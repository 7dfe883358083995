#include "engine/ops/attention/attention_cudnn_cuda.h"

#include <cuda_runtime.h>

#include <cstdio>

#include "engine/ops/attention/grad_workspace.h"
#include "engine/ops/cuda/cudnn_plans.h"
#include "engine/ops/cuda/launch_cuda.h"

namespace trainctl {
namespace {

using cuda::CudnnAttention;
using cuda::CudnnPlanPtr;
using cuda::CudnnTensor;

/// Whether all query heads are the same distance apart.
bool is_uniform(const AttentionCall& a) { return a.size.r == 1 || a.size.g == 1 || a.q.group == a.size.r * a.q.head; }

/// The keys that some query of this rank sees; the last row of queries sees all of them if it is causal.
int64_t seen_keys(const AttentionCall& a) { return a.keys_of(a.size.t); }

bool is_aligned(const TensorArg& arg, const Heads& heads) {
  const bool start = (reinterpret_cast<uintptr_t>(arg.data) + static_cast<uintptr_t>(2 * heads.first)) % 16 == 0;
  return start && heads.batch % 8 == 0 && heads.row % 8 == 0 && heads.group % 8 == 0 && heads.head % 8 == 0;
}

/// Says once what a run is without.
bool cudnn_is_here() {
  const std::string& fault = cuda::cudnn_fault();
  static const bool said = [&] {
    if (!fault.empty())
      std::fprintf(stderr, "attention runs in the engine's own kernels, which are slower in bf16: %s\n", fault.c_str());
    return true;
  }();
  return said && fault.empty();
}

bool is_suitable(const KernelCall& call, const AttentionCall& a) {
  if (call.out[0].dtype != DType::bf16 || a.masked || a.size.d % 8 != 0) return false;
  if (a.causal && a.first_row + a.size.t > a.size.s) return false;  // the last rows see keys beyond the diagonal
  return is_aligned(call.in[a.q_at], a.q) && is_aligned(call.in[a.k_at], a.k) && is_aligned(call.in[a.v_at], a.v) &&
         is_aligned(call.out[0], a.q) && cudnn_is_here();
}

CudnnAttention signature_of(const AttentionCall& a, const AttentionSlice& slice, bool backward) {
  const AttentionSize& n = a.size;
  const int64_t heads = slice.g * n.r, keys = seen_keys(a);
  const auto of_queries = [&](const Heads& x) {
    const int64_t step = n.r == 1 ? x.group : x.head;
    return CudnnTensor{{slice.b, heads, n.t, n.d}, {x.batch, step, x.row, 1}};
  };
  const auto of_keys = [&](const Heads& x) {
    return CudnnTensor{{slice.b, slice.g, keys, n.d}, {x.batch, x.group, x.row, 1}};
  };
  CudnnAttention signature{of_queries(a.q), of_keys(a.k), of_keys(a.v), of_queries(a.out)};
  signature.logs = {{slice.b, heads, n.t, 1}, {n.heads() * n.t, n.t, 1, 1}};
  signature.causal = a.causal;
  signature.scale = a.scale;
  signature.backward = backward;
  return signature;
}

/// Calls f(sample, group) for the first of each slice.
template <class F>
void for_each_slice(const AttentionSize& n, const AttentionSlice& slice, const F& f) {
  for (int64_t b = 0; b < n.b; b += slice.b) {
    for (int64_t g = 0; g < n.g; g += slice.g) f(b, g);
  }
}

const void* at(const TensorArg& arg, const Heads& heads, int64_t b, int64_t g) {
  return arg.as<uint16_t>() + offset_of(heads, b, g, 0, 0);
}

const void* at_logs(const TensorArg& logs, const AttentionSize& n, int64_t b, int64_t g) {
  return logs.as<float>() + (b * n.g + g) * n.r * n.t;
}

}  // namespace

CudaKernel cudnn_attention(const CudaKernelCall& call, const AttentionCall& a) {
  if (!is_suitable(call, a)) return nullptr;
  const AttentionSlice slice{a.size.b, is_uniform(a) ? a.size.g : 1};
  const CudnnPlanPtr plan = cudnn_plan(signature_of(a, slice, false));
  if (plan == nullptr || plan->workspace() > kForwardWorkspace) return nullptr;
  call.scratch->need(plan->workspace());
  return [plan, slice, a, q = call.in[a.q_at], k = call.in[a.k_at], v = call.in[a.v_at], out = call.out[0],
          logs = call.out[1], scratch = call.scratch](CudaStream stream) {
    for_each_slice(a.size, slice, [&](int64_t b, int64_t g) {
      plan->run(stream,
                {at(q, a.q, b, g), at(k, a.k, b, g), at(v, a.v, b, g), at(out, a.out, b, g),
                 at_logs(logs, a.size, b, g)},
                scratch->memory());
    });
  };
}

CudaKernel cudnn_attention_grad(const CudaKernelCall& call, const AttentionCall& a) {
  if (!is_suitable(call, a)) return nullptr;
  const AttentionSlice slice = grad_slice(a.size, is_uniform(a));
  if (slice.b == 0) return nullptr;
  const CudnnPlanPtr plan = cudnn_plan(signature_of(a, slice, true));
  if (plan == nullptr || plan->workspace() > grad_workspace(a.size, slice)) return nullptr;
  call.scratch->need(plan->workspace());
  return [plan, slice, a, dy = call.in[0], q = call.in[a.q_at], k = call.in[a.k_at], v = call.in[a.v_at],
          out = call.in[call.in.size() - 2], logs = call.in.back(), dq = call.out[0],
          dk = call.out[a.packed ? 0 : 1], dv = call.out[a.packed ? 0 : 2], scratch = call.scratch](CudaStream stream) {
    if (const int64_t seen = seen_keys(a); seen < a.size.s) {
      const auto row = static_cast<size_t>(2 * a.k.row);
      for (const TensorArg& to : {dk, dv})
        cuda_check(cudaMemset2DAsync(to.as<std::byte>() + static_cast<size_t>(seen) * row,
                                     static_cast<size_t>(2 * a.k.batch), 0,
                                     static_cast<size_t>(a.size.s - seen) * row, static_cast<size_t>(a.size.b), stream),
                   "attention_grad: cudaMemset2DAsync");
    }
    for_each_slice(a.size, slice, [&](int64_t b, int64_t g) {
      plan->run(stream,
                {at(q, a.q, b, g), at(k, a.k, b, g), at(v, a.v, b, g), at(out, a.out, b, g),
                 at_logs(logs, a.size, b, g), at(dy, a.out, b, g), at(dq, a.q, b, g), at(dk, a.k, b, g),
                 at(dv, a.v, b, g)},
                scratch->memory());
    });
  };
}

}  // namespace trainctl
