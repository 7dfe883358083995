// Starts the kernels of expert products (grouped_rows_cuda.cuh, grouped_sums_cuda.cuh), once for all multiprocessors;
// their pairs of blocks take units, two tiles each, in an order in which those that run at once share rows and columns,
// which then come from the L2 cache. Operands by token are gathered by the loading warps, 16 bytes at a time; the copy
// engine loads the others.
#include "engine/ops/cuda/driver_function_cuda.h"
#include "engine/ops/moe/grouped_products_cuda.h"
#include "engine/ops/moe/grouped_rows_cuda.cuh"
#include "engine/ops/moe/grouped_sums_cuda.cuh"

namespace trainctl::grouped {
namespace {

/// The copy engine's description of a matrix of up to four dims, the innermost first, in boxes whose lines have 128
/// bytes.
template <size_t N>
bool describe(CUtensorMap& to, const void* data, bool f32, const int64_t (&sizes)[N], const int (&box)[N]) {
  const auto encode = driver_function<decltype(cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
  if (encode == nullptr) return false;
  cuuint64_t counts[N], steps[N];
  cuuint32_t boxes[N], every[N];
  int64_t bytes = f32 ? 4 : 2;
  for (size_t i = 0; i < N; ++i) {
    counts[i] = static_cast<cuuint64_t>(std::max<int64_t>(1, sizes[i]));
    bytes *= sizes[i];
    steps[i] = static_cast<cuuint64_t>(bytes);
    boxes[i] = static_cast<cuuint32_t>(box[i]);
    every[i] = 1;
  }
  return encode(&to, f32 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, N,
                const_cast<void*>(data), counts, steps, boxes, every, CU_TENSOR_MAP_INTERLEAVE_NONE,
                CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}
void described(bool is) { check(is, "moe: the copy engine does not take an operand"); }

/// An even number of blocks, at most one for each multiprocessor.
unsigned blocks_of_pairs(int64_t pairs) {
  return static_cast<unsigned>(std::max<int64_t>(1, std::min<int64_t>(pairs, multiprocessors() / 2)) * 2);
}

template <class Kernel, class Operands>
void run(Kernel* kernel, const Operands& x, int64_t pairs, CudaStream stream) {
  launch(kernel, blocks_of_pairs(pairs), kThreads, Shared::bytes(), stream, "experts", x);
}

RowsProduct rows_product(const Rows& rows, const Operand& a, int64_t columns, int64_t parts, void* to) {
  RowsProduct x{};
  x.starts = rows.starts, x.token_of = rows.token_of, x.pair_of = rows.pair_of;
  x.experts = static_cast<int>(rows.experts), x.rows = static_cast<int>(rows.rows);
  x.terms = static_cast<int>(a.width), x.columns = static_cast<int>(columns), x.parts = static_cast<int>(parts);
  x.column_tiles = static_cast<int>(ceil_div(columns, parts == 2 ? kColumns / 2 : kColumns));
  x.to = static_cast<bf16*>(to);
  if (a.by_token)
    x.tokens = static_cast<const bf16*>(a.data);
  else
    described(describe(x.a, a.data, false, {a.width, rows.rows, 1}, {kTerms, kLines, 1}));
  return x;
}

/// Pairs of tiles of all experts, at most.
int64_t pairs_of(const RowsProduct& x) { return ceil_div(int64_t{x.rows} / kLines + x.experts, 2) * x.column_tiles; }

}  // namespace

bool applies(const ExpertsSize& n, const void* x) {
  constexpr int64_t kMost = int64_t{1} << 30;
  if (n.features % 8 != 0 || n.hidden % 8 != 0 || n.experts > kMostExperts || !is_hopper()) return false;
  if (n.rows < 1 || n.tokens * n.top_k >= kMost || n.tokens * (n.features / 8) >= kMost) return false;
  const int64_t tiles = n.rows / kLines + n.experts;
  if (tiles * ceil_div(std::max(n.features, n.inner()), kColumns) >= kMost) return false;
  CUtensorMap map;  // the emulated GPU of the tests does not take three dims
  if (!describe(map, x, false, {n.features, n.tokens, 1}, {64, 1, 1})) return false;
  const auto allow = [](auto* kernel) {
    cuda_check(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(Shared::bytes())),
        "experts");
  };
  allow(rows_kernel<true, false, Epilogue::activated>);
  allow(rows_kernel<false, false, Epilogue::weighted>);
  allow(rows_kernel<true, true, Epilogue::plain>);
  allow(rows_kernel<false, true, Epilogue::plain>);
  allow(sums_kernel<false, false>);
  allow(sums_kernel<false, true>);
  allow(sums_kernel<true, false>);
  allow(sums_kernel<true, true>);
  return true;
}

void up_product(CudaStream stream, const Rows& rows, const ExpertsSize& n, ExpertActivation activation, const void* x,
                const void* up, void* u, void* a) {
  RowsProduct p = rows_product(rows, {x, n.features, true}, n.hidden, n.parts, u);
  described(describe(p.b, up, false, {n.features, n.hidden, n.parts, n.experts}, {kTerms, kColumns / 2, 1, 1}));
  p.act_to = static_cast<bf16*>(a), p.activation = activation;
  run(rows_kernel<true, false, Epilogue::activated>, p, pairs_of(p), stream);
}

void down_product(CudaStream stream, const Rows& rows, const ExpertsSize& n, const void* a, const void* down,
                  const void* weights, bool weights_are_bf16, void* y) {
  RowsProduct p = rows_product(rows, {a, n.hidden, false}, n.features, 1, y);
  described(describe(p.b, down, false, {n.hidden, n.features, 1, n.experts}, {kTerms, kColumns / 2, 1, 1}));
  p.weights = {const_cast<void*>(weights), weights_are_bf16};
  run(rows_kernel<false, false, Epilogue::weighted>, p, pairs_of(p), stream);
}

void product(CudaStream stream, const Rows& rows, const Operand& x, const void* matrix, int64_t columns, void* y) {
  RowsProduct p = rows_product(rows, x, columns, 1, y);
  described(describe(p.b, matrix, false, {columns, x.width, rows.experts}, {64, kTerms, 1}));
  if (x.by_token)
    run(rows_kernel<true, true, Epilogue::plain>, p, pairs_of(p), stream);
  else
    run(rows_kernel<false, true, Epilogue::plain>, p, pairs_of(p), stream);
}

void sum_over_rows(CudaStream stream, const Rows& rows, const Operand& left, const Operand& right, void* y,
                   bool y_is_bf16, bool adds) {
  check(left.by_token != right.by_token, "moe: one of the operands is by token");
  const bool transposed = right.by_token;
  const Operand &lines = transposed ? right : left, &columns = transposed ? left : right;
  SumOverRows x{};
  x.starts = rows.starts, x.token_of = rows.token_of, x.experts = static_cast<int>(rows.experts);
  x.lines = static_cast<int>(lines.width), x.columns = static_cast<int>(columns.width);
  x.line_pairs = static_cast<int>(ceil_div(lines.width, 2 * kLines));
  x.column_tiles = static_cast<int>(ceil_div(columns.width, kColumns));
  x.tokens = static_cast<const uint4*>(lines.data), x.adds = adds;
  if (y_is_bf16) x.to = static_cast<bf16*>(y);
  described(describe(x.right, columns.data, false, {columns.width, rows.rows, 1}, {64, kTerms, 1}));
  described(describe(x.c, y, !y_is_bf16, {right.width, left.width, rows.experts},
                     {y_is_bf16 ? 64 : 32, !y_is_bf16 && transposed ? 32 : 64, 1}));
  const auto kernel = y_is_bf16 ? (transposed ? sums_kernel<true, true> : sums_kernel<false, true>)
                                : (transposed ? sums_kernel<true, false> : sums_kernel<false, false>);
  run(kernel, x, rows.experts * x.line_pairs * x.column_tiles, stream);
}

}  // namespace trainctl::grouped
