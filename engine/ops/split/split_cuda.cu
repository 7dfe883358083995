// split and concat copy rows: x is [outer, sizes added up, inner], part i is [outer, sizes[i], inner]. One launch copies
// several parts, each by the blocks of one blockIdx.y.
#include <cstdint>
#include <vector>

#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/strided_cuda.cuh"

namespace trainctl {
namespace {

constexpr int kParts = 8;  ///< of one launch
constexpr int kUnroll = 4;

/// Rows of words; a part's rows are contiguous, those of the whole are `whole_row` apart.
struct Strips {
  std::byte* part[kParts];
  std::byte* whole[kParts];  ///< the part's first row in the whole
  Divisor row_words[kParts];
  int64_t words[kParts];  ///< of all rows of the part
  int64_t whole_row;      ///< in words
};

// Kernels

template <class Word, bool kJoins>
__global__ void __launch_bounds__(kMapThreads) copy_strips(Strips s) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int p = static_cast<int>(blockIdx.y);
  auto* const part = reinterpret_cast<Word*>(s.part[p]);
  auto* const whole = reinterpret_cast<Word*>(s.whole[p]);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (kUnroll * kMapThreads) + threadIdx.x;
  const Divisor row_words = s.row_words[p];
  Word word[kUnroll];
  int64_t place[kUnroll];  // in the whole
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t at = first + u * kMapThreads;
    if (at >= s.words[p]) continue;
    const uint32_t row = row_words.quotient(static_cast<uint32_t>(at));
    place[u] = row * s.whole_row + (at - static_cast<int64_t>(row) * row_words.by);
    word[u] = kJoins ? part[at] : whole[place[u]];
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t at = first + u * kMapThreads;
    if (at >= s.words[p]) continue;
    (kJoins ? whole[place[u]] : part[at]) = word[u];
  }
}

// Launchers

template <class Word, bool kJoins>
void launch_strips(const Strips& s, int parts, CudaStream stream) {
  int64_t most = 0;
  for (int p = 0; p < parts; ++p) most = std::max(most, s.words[p]);
  const dim3 blocks(static_cast<unsigned>(ceil_div(most, kUnroll * kMapThreads)), static_cast<unsigned>(parts));
  launch(copy_strips<Word, kJoins>, blocks, kMapThreads, 0, stream, kJoins ? "concat" : "split", s);
}

template <bool kJoins>
using Launch = void (*)(const Strips&, int parts, CudaStream);

/// The widest words that fit all offsets and addresses, given their bits.
template <bool kJoins>
std::pair<Launch<kJoins>, int64_t> launch_for(int64_t bits) {
  if (bits % 16 == 0) return {launch_strips<uint4, kJoins>, 16};
  if (bits % 8 == 0) return {launch_strips<uint2, kJoins>, 8};
  if (bits % 4 == 0) return {launch_strips<uint32_t, kJoins>, 4};
  return {launch_strips<uint16_t, kJoins>, 2};
}

template <bool kJoins>
CudaKernel prepare(const CudaKernelCall& call) {
  const TensorArg& whole = kJoins ? call.out[0] : call.in[0];
  const std::vector<TensorArg>& parts = kJoins ? call.in : call.out;
  const auto dim = static_cast<size_t>(call.attrs.integer("dim"));
  const Ints offsets = call.attrs.ints("offsets");
  int64_t inner = byte_size(whole.dtype), rows = 1;
  for (size_t d = dim + 1; d < whole.shape.size(); ++d) inner *= whole.shape[d];
  for (size_t d = 0; d < dim; ++d) rows *= whole.shape[d];
  const int64_t whole_row = whole.shape[dim] * inner;
  if (rows * whole_row == 0) return [](CudaStream) {};

  std::vector<Strips> launches;
  int64_t next = 0, covered = 0, bits = whole_row | static_cast<int64_t>(reinterpret_cast<uintptr_t>(whole.data));
  for (size_t i = 0; i < parts.size(); ++i) {
    check(parts[i].dtype == whole.dtype, "split and concat move elements as they are");
    const int64_t offset = offsets.empty() ? next : offsets[i] * inner, row = parts[i].shape[dim] * inner;
    bits |= offset | row | static_cast<int64_t>(reinterpret_cast<uintptr_t>(parts[i].data));
    next = offset + row;
    covered += row;
  }
  check(next <= whole_row, "the parts are within the whole");
  const auto [run, word] = launch_for<kJoins>(bits);
  next = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i % kParts == 0) launches.emplace_back();
    Strips& s = launches.back();
    const int64_t offset = offsets.empty() ? next : offsets[i] * inner, row = parts[i].shape[dim] * inner;
    s.part[i % kParts] = parts[i].template as<std::byte>();
    s.whole[i % kParts] = whole.template as<std::byte>() + offset;
    s.row_words[i % kParts] = Divisor(row / word);
    s.words[i % kParts] = rows * (row / word);
    s.whole_row = whole_row / word;
    check(s.words[i % kParts] < (int64_t{1} << 31), "split and concat take parts of up to 2^31 words");
    next = offset + row;
  }
  const bool has_gaps = kJoins && covered < whole_row;
  const int last = static_cast<int>((parts.size() - 1) % kParts) + 1;
  return [=, run = run, to = whole.data, bytes = static_cast<size_t>(rows * whole_row)](CudaStream stream) {
    if (has_gaps) cuda_check(cudaMemsetAsync(to, 0, bytes, stream), "concat");
    for (size_t l = 0; l < launches.size(); ++l) run(launches[l], l + 1 == launches.size() ? last : kParts, stream);
  };
}

}  // namespace

extern const CudaKernels split_cuda = {{"split", prepare<false>}, {"concat", prepare<true>}};

}  // namespace trainctl
