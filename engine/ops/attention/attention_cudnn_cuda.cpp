// Attention in bf16 and f16 by cuDNN, which reads packed heads in place.
#include "engine/ops/attention/attention_cudnn_cuda.h"

#include <algorithm>
#include <string>

#include "engine/ops/attention/grad_workspace.h"
#include "engine/ops/attention/key_parts_cuda.h"
#include "engine/ops/cuda/cudnn_plans.h"
#include "engine/ops/cuda/launch_cuda.h"
#include "engine/ops/cuda/print_once.h"

namespace trainctl {
namespace {

using cuda::CudnnAttention;
using cuda::CudnnPlanPtr;
using cuda::CudnnTensor;

/// Returns whether all query heads are the same distance apart.
bool is_uniform(const AttentionCall& a) { return a.size.r == 1 || a.size.g == 1 || a.q.group == a.size.r * a.q.head; }

/// The number of keys that some query of this rank sees.
int64_t seen_keys(const AttentionCall& a) { return a.keys_of(a.size.t); }

/// Returns whether all operands that cuDNN reads (the sinks are not among them) begin at multiples of 16 bytes.
bool is_aligned(const KernelCall& call, const AttentionCall& a) {
  const auto starts = [](const TensorArg& arg) { return reinterpret_cast<uintptr_t>(arg.data) % 16 == 0; };
  const auto end = call.in.end() - (a.has_sinks ? 1 : 0);
  return std::all_of(call.in.begin(), end, starts) && std::all_of(call.out.begin(), call.out.end(), starts);
}

std::string sizes(const AttentionCall& a) {
  const AttentionSize& n = a.size;
  return std::to_string(n.b) + " samples of " + std::to_string(n.heads()) + " heads (" + std::to_string(n.g) +
         " key heads) of " + std::to_string(n.d) + " features, " +
         (n.e == n.d ? "" : std::to_string(n.e) + " of values, ") + std::to_string(n.t) + " rows, " +
         std::to_string(n.s) + " keys" + (a.causal ? ", causal" : "") +
         (a.window > 0 ? ", a window of " + std::to_string(a.window) : "");
}

/// Reports once that a run in bf16 or fp16 does not use cuDNN, and why.
CudaKernel refused(const AttentionCall& a, const std::string& why, bool backward) {
  print_once(std::string("the ") + (backward ? "gradient of attention" : "attention") + " of " + sizes(a) +
             " uses the built-in kernels, which are slower: " + why);
  return nullptr;
}

/// Returns why cuDNN cannot compute this call; "" if it may be able to.
std::string unsuitable(const KernelCall& call, const AttentionCall& a) {
  if (a.masked) return "cuDNN's attention does not support a key mask";
  if (a.terms.any) return "cuDNN's attention is not used with alibi, a bias of the scores or dropout";
  if (a.softcap > 0) return "cuDNN's attention does not support a causal mask with a softcap";
  if (a.size.d % 8 != 0 || a.size.e % 8 != 0)
    return "cuDNN's attention supports only heads with a multiple of 8 features";
  if (a.causal && a.first_row + a.size.t > a.size.s) return "the last rows are beyond the last key";
  if (!is_aligned(call, a)) return "an operand is not aligned to 16 bytes";
  return cuda::cudnn_fault();
}

/// The call that cuDNN plans and runs once per slice.
CudnnAttention signature_of(const AttentionCall& a, const AttentionSlice& slice, DType dtype, bool backward) {
  const AttentionSize& n = a.size;
  const int64_t heads = slice.g * n.r, keys = seen_keys(a);
  const auto of_queries = [&](const Heads& x, int64_t features) {
    if (slice.heads_as_samples) return CudnnTensor{{slice.g, n.r, n.t, features}, {x.group, x.head, x.row, 1}};
    const int64_t step = n.r == 1 ? x.group : x.head;
    return CudnnTensor{{slice.b, heads, n.t, features}, {x.batch, step, x.row, 1}};
  };
  const auto of_keys = [&](const Heads& x, int64_t features) {
    if (slice.heads_as_samples) return CudnnTensor{{slice.g, 1, keys, features}, {x.group, x.group, x.row, 1}};
    return CudnnTensor{{slice.b, slice.g, keys, features}, {x.batch, x.group, x.row, 1}};
  };
  CudnnAttention signature{of_queries(a.q, n.d), of_keys(a.k, n.d), of_keys(a.v, n.e), of_queries(a.out, n.e)};
  signature.logs = {{slice.b, heads, n.t, 1}, {n.heads() * n.t, n.t, 1, 1}};
  if (slice.heads_as_samples) signature.logs = {{slice.g, n.r, n.t, 1}, {n.r * n.t, n.t, 1, 1}};
  signature.causal = a.causal;
  signature.window = a.window;
  signature.scale = a.scale;
  signature.backward = backward;
  signature.dtype = dtype;
  return signature;
}

/// Calls f(sample, group) for the first sample and kv head of each slice.
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
  if (!is_half(call.out[0].dtype)) return nullptr;
  if (const std::string why = unsuitable(call, a); !why.empty()) return refused(a, why, false);
  const AttentionSlice slice = largest_slice(a.size, is_uniform(a), [](const AttentionSlice&) { return true; });
  const CudnnPlanPtr plan = cudnn_plan(signature_of(a, slice, call.out[0].dtype, false));
  if (plan == nullptr) return refused(a, "cuDNN has no engine for it", false);
  if (plan->workspace() > kForwardWorkspace)
    return refused(a, "cuDNN needs " + std::to_string(plan->workspace()) + " bytes of workspace", false);
  call.scratch->need(plan->workspace());
  return [plan, slice, a, q = call.in[a.q_at], k = call.in[a.k_at], v = call.in[a.v_at], out = call.out[0],
          logs = call.out[1], scratch = call.scratch](CudaStream stream) {
    for_each_slice(a.size, slice, [&](int64_t b, int64_t g) {
      plan->run(
          stream,
          {at(q, a.q, b, g), at(k, a.k, b, g), at(v, a.v, b, g), at(out, a.out, b, g), at_logs(logs, a.size, b, g)},
          scratch->memory());
    });
  };
}

namespace {

/// The operands of the gradient.
struct Gradient {
  AttentionCall a;
  TensorArg dy, q, k, v, out, logs, dq, dk, dv;

  Gradient(const CudaKernelCall& call, const AttentionCall& of)
      : a(of),
        dy(call.in[0]),
        q(call.in[of.q_at]),
        k(call.in[of.k_at]),
        v(call.in[of.v_at]),
        out(call.in[call.in.size() - 2]),
        logs(call.in.back()),
        dq(call.out[0]),
        dk(call.out[of.packed ? 0 : 1]),
        dv(call.out[of.packed ? 0 : 2]) {}

  /// Sets the gradients of keys and values that no query sees to 0.
  void clear_unseen(CudaStream stream) const {
    const int64_t seen = seen_keys(a);
    if (seen == a.size.s) return;
    for (const auto& [to, heads] : {std::pair{&dk, &a.k}, std::pair{&dv, &a.v}}) {
      for (int64_t b = 0; b < a.size.b; ++b)
        cuda_check(cudaMemsetAsync(to->as<uint16_t>() + offset_of(*heads, b, 0, 0, seen), 0,
                                   static_cast<size_t>(2 * (a.size.s - seen) * heads->row), stream),
                   "attention_grad");
    }
  }
};

/// The gradient for one query head of each group. q, dy, out and dq are strided as in the call. dk and dv are separate
/// tensors [b, g, keys, features], and the logs are copied to [b, g, t], because cuDNN before 9.26 reads only
/// contiguous logs in the gradient.
CudnnAttention signature_of_query(const AttentionCall& a, const AttentionSlice& slice) {
  const AttentionSize& n = a.size;
  const int64_t keys = seen_keys(a);
  const auto of = [&](const Heads& x, int64_t rows, int64_t features) {
    return CudnnTensor{{slice.b, slice.g, rows, features}, {x.batch, x.group, x.row, 1}};
  };
  const auto part = [&](int64_t features) {
    return CudnnTensor{{slice.b, slice.g, keys, features}, {slice.g * keys * features, keys * features, features, 1}};
  };
  CudnnAttention signature{of(a.q, n.t, n.d), of(a.k, keys, n.d), of(a.v, keys, n.e), of(a.out, n.t, n.e)};
  signature.logs = {{slice.b, slice.g, n.t, 1}, {slice.g * n.t, n.t, 1, 1}};
  signature.dk = part(n.d), signature.dv = part(n.e);
  signature.causal = a.causal;
  signature.window = a.window;
  signature.scale = a.scale;
  signature.backward = true;
  return signature;
}

/// Copies the logs of one query head of each group from [b, g, r, t] to [b, g, t]. `from`: the slice's first row of
/// that head.
void copy_logs(CudaStream stream, const float* from, const AttentionSize& n, const AttentionSlice& slice, void* to) {
  const auto row = static_cast<size_t>(n.t) * sizeof(float);
  for (int64_t b = 0; b < slice.b; ++b) {
    cuda_check(cudaMemcpy2DAsync(static_cast<std::byte*>(to) + static_cast<size_t>(b * slice.g) * row, row,
                                 from + b * n.heads() * n.t, static_cast<size_t>(n.r) * row, row,
                                 static_cast<size_t>(slice.g), cudaMemcpyDeviceToDevice, stream),
               "attention_grad");
  }
}

/// Computes the gradient query head by query head and adds up their dk and dv. Null if cuDNN has no engine for it, and
/// in f16: the kernel that adds up takes bf16.
CudaKernel grad_by_queries(const CudaKernelCall& call, const AttentionCall& a) {
  const AttentionSize& n = a.size;
  AttentionSlice slice = n.r > 1 && call.out[0].dtype == DType::bf16 ? query_slice(n) : AttentionSlice{};
  if (slice.b == 0) return nullptr;
  const int64_t most = parts_and_workspace(n, slice);  // as the plan shows
  const auto room = [&](const CudnnPlanPtr& plan) { return scratch_of_parts(n, slice) + plan->workspace(); };
  CudnnPlanPtr plan = cudnn_plan(signature_of_query(a, slice));
  while (plan != nullptr && room(plan) > most) {
    slice = smaller(n, slice);
    plan = slice.b > 0 ? cudnn_plan(signature_of_query(a, slice)) : nullptr;
  }
  if (plan == nullptr) return nullptr;
  call.scratch->need(room(plan));
  return [plan, slice, g = Gradient(call, a), scratch = call.scratch](CudaStream stream) {
    const AttentionSize& size = g.a.size;
    g.clear_unseen(stream);
    const int64_t bytes = part_bytes(size, slice);
    auto* const dks = static_cast<std::byte*>(scratch->memory());
    std::byte *const dvs = dks + size.r * bytes, *const logs = dvs + size.r * bytes,
                     *const workspace = logs + log_bytes(size, slice);
    for_each_slice(size, slice, [&](int64_t b, int64_t group) {
      const auto of_query = [&](const TensorArg& arg, const Heads& heads, int64_t r) {
        return arg.as<uint16_t>() + offset_of(heads, b, group, r, 0);
      };
      for (int64_t r = 0; r < size.r; ++r) {
        copy_logs(stream, g.logs.as<float>() + ((b * size.g + group) * size.r + r) * size.t, size, slice, logs);
        plan->run(
            stream,
            {of_query(g.q, g.a.q, r), at(g.k, g.a.k, b, group), at(g.v, g.a.v, b, group), of_query(g.out, g.a.out, r),
             logs, of_query(g.dy, g.a.out, r), of_query(g.dq, g.a.q, r), dks + r * bytes, dvs + r * bytes},
            workspace);
      }
      KeyParts parts{slice.b, slice.g, seen_keys(g.a), size.d, size.r, bytes};
      add_key_parts(stream, dks, parts, g.dk.as<uint16_t>() + offset_of(g.a.k, b, group, 0, 0), g.a.k);
      parts.d = size.e;
      add_key_parts(stream, dvs, parts, g.dv.as<uint16_t>() + offset_of(g.a.v, b, group, 0, 0), g.a.v);
    });
  };
}

}  // namespace

CudaKernel cudnn_attention_grad(const CudaKernelCall& call, const AttentionCall& a) {
  if (!is_half(call.out[0].dtype)) return nullptr;
  if (const std::string why = unsuitable(call, a); !why.empty()) return refused(a, why, true);
  AttentionSlice slice = grad_slice(a.size, is_uniform(a));
  const int64_t most = slice.b > 0 ? grad_workspace(a.size, slice) : 0;  // as the plan shows
  CudnnPlanPtr plan = slice.b > 0 ? cudnn_plan(signature_of(a, slice, call.out[0].dtype, true)) : nullptr;
  while (plan != nullptr && plan->workspace() > most) {
    slice = smaller(a.size, slice);
    plan = slice.b > 0 ? cudnn_plan(signature_of(a, slice, call.out[0].dtype, true)) : nullptr;
  }
  if (plan == nullptr) {
    if (CudaKernel by_queries = grad_by_queries(call, a)) return by_queries;
    return refused(a, "cuDNN has no deterministic engine for it within 256 MB of workspace", true);
  }
  call.scratch->need(plan->workspace());
  return [plan, slice, g = Gradient(call, a), scratch = call.scratch](CudaStream stream) {
    g.clear_unseen(stream);
    for_each_slice(g.a.size, slice, [&](int64_t b, int64_t group) {
      plan->run(stream,
                {at(g.q, g.a.q, b, group), at(g.k, g.a.k, b, group), at(g.v, g.a.v, b, group),
                 at(g.out, g.a.out, b, group), at_logs(g.logs, g.a.size, b, group), at(g.dy, g.a.out, b, group),
                 at(g.dq, g.a.q, b, group), at(g.dk, g.a.k, b, group), at(g.dv, g.a.v, b, group)},
                scratch->memory());
    });
  };
}

}  // namespace trainctl
