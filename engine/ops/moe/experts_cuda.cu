// The experts on GPUs: pairs of a token and an expert are sorted into rows, the products of all experts are one launch
// of tiles over ragged rows, and each token adds up its rows in the order of its slots. Products of bf16 run on tensor
// cores, on Hopper as warp groups compute them (grouped_products_cuda.h), elsewhere by expert_tiles_cuda.cuh; others
// run in f32 arithmetic.
#include "engine/ops/moe/expert_products_cuda.cuh"
#include "engine/ops/moe/expert_row_kernels_cuda.cuh"
#include "engine/ops/moe/grouped_products_cuda.h"

namespace trainctl {
namespace {

unsigned grid(int64_t count) {
  check(count <= INT32_MAX, "moe: too many rows for one launch");
  return static_cast<unsigned>(count);
}

/// Takes parts of the scratch memory one after another.
class ScratchParts {
 public:
  ScratchParts(const CudaScratch& scratch, bool is_bf16)
      : next_(static_cast<char*>(scratch.memory())), is_bf16_(is_bf16) {}
  void* take(int64_t bytes) {
    void* const here = next_;
    next_ += (bytes + 255) / 256 * 256;
    return here;
  }
  Ref<Mixed> numbers(int64_t count) { return {take(count * (is_bf16_ ? 2 : 4)), is_bf16_}; }

 private:
  char* next_;
  bool is_bf16_;
};

/// bf16 whose rows of this width are aligned to 16 bytes.
bool suits_tensor_cores(Ref<Mixed> operand, int64_t width) {
  return operand.is_bf16 && width % kChunk == 0 && reinterpret_cast<uintptr_t>(operand.p) % 16 == 0;
}

Ref<bf16> packs_of(Ref<Mixed> operand) { return {static_cast<bf16*>(operand.p)}; }

/// Calls run with the activation as a constant.
template <class Run>
void with_activation(ExpertActivation activation, Run run) {
  using enum ExpertActivation;
  switch (activation) {
    case clamped_swiglu:
      return run(std::integral_constant<ExpertActivation, clamped_swiglu>{});
    case swiglu:
      return run(std::integral_constant<ExpertActivation, swiglu>{});
    case geglu:
      return run(std::integral_constant<ExpertActivation, geglu>{});
    case silu:
      return run(std::integral_constant<ExpertActivation, silu>{});
    case gelu:
      return run(std::integral_constant<ExpertActivation, gelu>{});
    case relu:
      return run(std::integral_constant<ExpertActivation, relu>{});
  }
}

/// The sizes and operands that both kernels share.
struct ExpertsLaunch {
  ExpertsSize n;
  ExpertActivation activation;
  CudaScratch* scratch;
  Ref<Mixed> x, weights, up, down;
  Ref<Mixed> up_bias = {}, down_bias = {};  ///< null: no biases, or another rank adds them
  const int32_t* ids;

  ExpertsLaunch(const CudaKernelCall& call, size_t first, const TensorArg& kept)
      : n(ExpertsSize::of(call.in[first + 2].shape, call.in[first + 3].shape, kept.shape)),
        activation(expert_activation(call.attrs)),
        scratch(call.scratch),
        x(ref<Mixed>(call.in[first])),
        weights(ref<Mixed>(call.in[first + 1])),
        up(ref<Mixed>(call.in[first + 3])),
        down(ref<Mixed>(call.in[first + 4])),
        ids(call.in[first + 2].as<int32_t>()) {
    n.first = call.in[first + 3].offset[0];
    n.adds_down_bias = call.in[first + 3].offset[2] == 0;
    const bool has_biases = call.in.size() == (first == 0 ? 7 : 8);
    if (has_biases && first == 0) up_bias = ref<Mixed>(call.in[5]);
    if (has_biases && n.adds_down_bias) down_bias = ref<Mixed>(call.in.back());
  }

  int experts() const { return static_cast<int>(n.experts); }
  int top_k() const { return static_cast<int>(n.top_k); }

  ExpertRowsRef sort(ScratchParts& parts, CudaStream stream) const {
    const ExpertRowsRef rows = ExpertRowsRef::at(static_cast<int*>(parts.take(4 * ints_of_rows(n))), n);
    const int64_t pairs = n.tokens * n.top_k;
    const int first = static_cast<int>(n.first), chunks = ExpertRowsRef::chunks(n);
    if (chunks > 0)
      launch(count_pairs_kernel, grid(chunks), kSortThreads, 0, stream, "experts", ids, pairs, first, experts(), rows);
    launch(sum_counts_kernel, grid(ceil_div(n.experts, kSortThreads / 32)), kSortThreads, 0, stream, "experts",
           experts(), chunks, rows);
    launch(find_starts_kernel, 1, 32, 0, stream, "experts", experts(), n.rows, rows);
    if (chunks > 0)
      launch(place_pairs_kernel, grid(chunks), kSortThreads, 0, stream, "experts", ids, pairs, top_k(), first,
             experts(), n.rows, rows);
    return rows;
  }

  /// y, and zeros in dweights for pairs of other ranks.
  void combine(const ExpertRowsRef& rows, Ref<Mixed> made, Ref<Mixed> of_pairs, Ref<Mixed> y, Ref<Mixed> dweights,
               CudaStream stream) const {
    if (n.tokens == 0) return;
    if (suits_tensor_cores(made, n.features) && suits_tensor_cores(y, n.features)) {
      const int packs = static_cast<int>(n.features / kChunk);
      launch(combine_row_packs_kernel, grid(ceil_div(n.tokens * packs, kExpertThreads)), kExpertThreads, 0, stream,
             "experts", rows.row_of, n.tokens, top_k(), packs, packs_of(made), of_pairs, packs_of(y), dweights);
      return;
    }
    launch(combine_rows_kernel, grid(n.tokens), kExpertThreads, 0, stream, "experts", rows.row_of, top_k(), n.features,
           made, of_pairs, y, dweights);
  }

  /// Adds the first bias to u, and writes a.
  void activate(const ExpertRowsRef& rows, Ref<Mixed> u, Ref<Mixed> a, CudaStream stream) const {
    launch(activate_kernel, grid(n.rows), kExpertThreads, 0, stream, "experts", activation, rows.starts, experts(),
           n.hidden, up_bias, u, a);
  }

  /// Adds the second bias to rows, times the weights of their pairs if those are given.
  void add_down_bias(const ExpertRowsRef& rows, Ref<Mixed> made, Ref<Mixed> of_pairs, CudaStream stream) const {
    if (down_bias.p == nullptr) return;
    launch(add_down_bias_kernel, grid(n.rows), kExpertThreads, 0, stream, "experts", rows, experts(), n.features,
           down_bias, of_pairs, made);
  }

  void product(const RowsProduct& p, const ExpertRowsRef& rows, CudaStream stream) const {
    if (suits_tensor_cores(p.a.data, p.k) && suits_tensor_cores(p.b, p.n)) {
      const dim3 blocks(grid(ceil_div(p.n, kGroupedColumns)), grid(n.rows / kExpertTile + n.experts));
      launch(p.transposed ? grouped_rows_kernel<true> : grouped_rows_kernel<false>, blocks, kGroupedThreads, 0, stream,
             "experts", p, rows.starts, experts());
      return;
    }
    const dim3 blocks(grid(ceil_div(p.n, kExpertTile)), grid(n.rows / kExpertTile + n.experts));
    launch(rows_product_kernel, blocks, kExpertThreads, 0, stream, "experts", p, rows.starts, experts());
  }

  ExpertOperand by_token(Ref<Mixed> data, const ExpertRowsRef& rows) const {
    return {data, n.features, rows.pair_of, top_k(), {}};
  }

  void sum_rows(const SumOverRows& p, const ExpertRowsRef& rows, CudaStream stream) const {
    if (suits_tensor_cores(p.a.data, p.a.width) && suits_tensor_cores(p.b.data, p.b.width)) {
      const dim3 blocks(grid(ceil_div(p.b.width, kGroupedColumns)), grid(ceil_div(p.a.width, kGroupedLines)),
                        grid(n.experts));
      launch(grouped_sums_kernel, blocks, kGroupedThreads, 0, stream, "experts", p, rows.starts);
      return;
    }
    const dim3 blocks(grid(ceil_div(p.b.width, kExpertTile)), grid(ceil_div(p.a.width, kExpertTile)), grid(n.experts));
    launch(sum_over_rows_kernel, blocks, kExpertThreads, 0, stream, "experts", p, rows.starts);
  }
};

/// True if grouped_products_cuda.h computes the experts, with these operands in addition to those of both kernels.
bool on_hopper(const ExpertsLaunch& e, std::initializer_list<Ref<Mixed>> operands) {
  const auto suits = [](Ref<Mixed> operand) { return suits_tensor_cores(operand, kChunk); };
  return suits(e.x) && suits(e.up) && suits(e.down) && std::all_of(operands.begin(), operands.end(), suits) &&
         grouped::applies(e.n, e.x.p);
}

grouped::Rows grouped_rows(const ExpertsSize& n, const ExpertRowsRef& rows) {
  return {rows.starts, rows.token_of, rows.pair_of, n.experts, n.rows};
}

CudaKernel experts_on_hopper(const ExpertsLaunch& e, Ref<Mixed> y, Ref<Mixed> kept) {
  return [e, y, kept](CudaStream stream) {
    const ExpertsSize& n = e.n;
    ScratchParts parts(*e.scratch, true);
    const ExpertRowsRef sorted = e.sort(parts, stream);
    const grouped::Rows rows = grouped_rows(n, sorted);
    const Ref<Mixed> a = parts.numbers(n.rows * n.hidden), made = parts.numbers(n.rows * n.features);
    grouped::up_product(stream, rows, n, e.activation, e.x.p, e.up.p, kept.p, a.p);
    if (e.up_bias.p != nullptr) e.activate(sorted, kept, a, stream);  // once more, with the bias
    grouped::down_product(stream, rows, n, a.p, e.down.p, e.weights.p, e.weights.is_bf16, made.p);
    e.add_down_bias(sorted, made, e.weights, stream);
    e.combine(sorted, made, {}, y, {}, stream);
  };
}

/// Operands of experts_grad in addition to those of both kernels.
struct ExpertsGradient {
  Ref<Mixed> dy, kept, dx, dweights, dup, ddown;
  bool adds_up, adds_down;
  Ref<Mixed> dup_bias = {}, ddown_bias = {};  ///< null: no biases
  bool adds_up_bias = false, adds_down_bias = false;

  explicit ExpertsGradient(const CudaKernelCall& call)
      : dy(ref<Mixed>(call.in[0])),
        kept(ref<Mixed>(call.in[6])),
        dx(ref<Mixed>(call.out[0])),
        dweights(ref<Mixed>(call.out[1])),
        dup(ref<Mixed>(call.out[2])),
        ddown(ref<Mixed>(call.out[3])),
        adds_up(call.out[2].accumulate),
        adds_down(call.out[3].accumulate) {
    if (call.out.size() < 6) return;
    dup_bias = ref<Mixed>(call.out[4]), adds_up_bias = call.out[4].accumulate;
    ddown_bias = ref<Mixed>(call.out[5]), adds_down_bias = call.out[5].accumulate;
  }

  /// The gradients of the biases, and the second bias's part of those of the weights of pairs.
  void of_biases(const ExpertsLaunch& e, const ExpertRowsRef& rows, Ref<Mixed> du, CudaStream stream) const {
    if (dup_bias.p == nullptr) return;
    if (e.down_bias.p != nullptr && e.n.rows > 0)
      launch(down_bias_weight_grad_kernel, grid(ceil_div(e.n.rows, kExpertThreads / 32)), kExpertThreads, 0, stream,
             "experts_grad", rows, e.experts(), e.n.rows, e.n.features, e.down_bias, dy, dweights);
    const auto sum = [&](const ExpertOperand& of, bool is_here, Ref<Mixed> to, bool adds) {
      launch(sum_bias_kernel, dim3(grid(ceil_div(of.width, kExpertThreads)), grid(e.n.experts)), kExpertThreads, 0,
             stream, "experts_grad", rows.starts, of.width, of, is_here, to, adds);
    };
    ExpertOperand weighted_dy = e.by_token(dy, rows);
    weighted_dy.weights = e.weights;
    sum({du, e.n.inner()}, true, dup_bias, adds_up_bias);
    sum(weighted_dy, e.n.adds_down_bias, ddown_bias, adds_down_bias);
  }
};

/// The gradients by the products for Hopper's tensor cores (grouped_products_cuda.h), with the same steps as in
/// prepare_experts_grad.
CudaKernel experts_grad_on_hopper(const ExpertsLaunch& e, const ExpertsGradient& g) {
  return [e, g](CudaStream stream) {
    const ExpertsSize& n = e.n;
    ScratchParts parts(*e.scratch, true);
    const ExpertRowsRef sorted = e.sort(parts, stream);
    const grouped::Rows rows = grouped_rows(n, sorted);
    const Ref<Mixed> da = parts.numbers(n.rows * n.hidden), a = parts.numbers(n.rows * n.hidden),
                     du = parts.numbers(n.rows * n.inner()), made = parts.numbers(n.rows * n.features);
    const grouped::Operand dy{g.dy.p, n.features, true}, x{e.x.p, n.features, true}, of_u{du.p, n.inner(), false},
        of_a{a.p, n.hidden, false};
    grouped::product(stream, rows, dy, e.down.p, n.hidden, da.p);
    with_activation(e.activation, [&](auto activation) {
      launch(activate_grad_packs_kernel<activation.value>, grid(ceil_div(n.rows, kExpertThreads / 32)), kExpertThreads,
             0, stream, "experts_grad", sorted, e.experts(), n.rows, n.hidden, e.weights, packs_of(g.kept),
             packs_of(da), packs_of(a), packs_of(du), g.dweights);
    });
    grouped::product(stream, rows, of_u, e.up.p, n.features, made.p);
    e.combine(sorted, made, {}, g.dx, g.dweights, stream);
    g.of_biases(e, sorted, du, stream);
    grouped::sum_over_rows(stream, rows, of_u, x, g.dup.p, g.dup.is_bf16, g.adds_up);
    grouped::sum_over_rows(stream, rows, dy, of_a, g.ddown.p, g.ddown.is_bf16, g.adds_down);
  };
}

}  // namespace

CudaKernel prepare_experts(const CudaKernelCall& call) {
  const ExpertsLaunch e(call, 0, call.out[1]);
  if (e.n.tokens == 0) return [](CudaStream) {};
  call.scratch->need(experts_scratch(e.n, false));
  if (on_hopper(e, {ref<Mixed>(call.out[0]), ref<Mixed>(call.out[1])}))
    return experts_on_hopper(e, ref<Mixed>(call.out[0]), ref<Mixed>(call.out[1]));
  return [e, y = ref<Mixed>(call.out[0]), kept = ref<Mixed>(call.out[1])](CudaStream stream) {
    const ExpertsSize& n = e.n;
    ScratchParts parts(*e.scratch, e.x.is_bf16);
    const ExpertRowsRef rows = e.sort(parts, stream);
    const Ref<Mixed> a = parts.numbers(n.rows * n.hidden), made = parts.numbers(n.rows * n.features);
    e.product({e.by_token(e.x, rows), e.up, kept, n.inner(), n.features, true}, rows, stream);
    e.activate(rows, kept, a, stream);
    e.product({{a, n.hidden}, e.down, made, n.features, n.hidden, true}, rows, stream);
    e.add_down_bias(rows, made, {}, stream);
    e.combine(rows, made, e.weights, y, {}, stream);
  };
}

/// The gradients of x, the weights of experts, their matrices and biases. da, du: gradients after and before the
/// activation; a: its output; made: the gradient of x by pairs of a token and an expert.
CudaKernel prepare_experts_grad(const CudaKernelCall& call) {
  const ExpertsLaunch e(call, 1, call.in[6]);
  call.scratch->need(experts_scratch(e.n, true));
  const ExpertsGradient g(call);
  const auto starts = [](Ref<Mixed> operand) { return reinterpret_cast<uintptr_t>(operand.p) % 16 == 0; };
  if (on_hopper(e, {g.dy, g.kept, g.dx}) && starts(g.dup) && starts(g.ddown)) return experts_grad_on_hopper(e, g);
  return [e, g](CudaStream stream) {
    const ExpertsSize& n = e.n;
    ScratchParts parts(*e.scratch, e.x.is_bf16);
    const ExpertRowsRef rows = e.sort(parts, stream);
    const Ref<Mixed> da = parts.numbers(n.rows * n.hidden), a = parts.numbers(n.rows * n.hidden),
                     du = parts.numbers(n.rows * n.inner()), made = parts.numbers(n.rows * n.features);
    ExpertOperand weighted_dy = e.by_token(g.dy, rows);
    weighted_dy.weights = e.weights;
    e.product({e.by_token(g.dy, rows), e.down, da, n.hidden, n.features, false}, rows, stream);
    if (n.rows > 0)
      launch(activate_grad_kernel, grid(n.rows), kExpertThreads, 0, stream, "experts_grad", e.activation, rows,
             e.experts(), n.hidden, e.weights, g.kept, da, a, du, g.dweights);
    e.product({{du, n.inner()}, e.up, made, n.features, n.inner(), false}, rows, stream);
    e.combine(rows, made, {}, g.dx, g.dweights, stream);
    g.of_biases(e, rows, du, stream);
    e.sum_rows({{du, n.inner()}, e.by_token(e.x, rows), g.dup, g.adds_up}, rows, stream);
    e.sum_rows({weighted_dy, {a, n.hidden}, g.ddown, g.adds_down}, rows, stream);
  };
}

}  // namespace trainctl
