// split and concat copy strips, which are rows of bytes at a constant distance (parts.h). One launch copies several
// strips, and the blocks of one blockIdx.y copy one of them.
#include <cstdint>
#include <vector>

#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/strided_cuda.cuh"
#include "engine/ops/split/parts.h"

namespace trainctl {
namespace {

constexpr int kStrips = 8;  ///< strips per launch
constexpr int kSplitUnroll = 4;

/// The strips of one launch. All sizes are in words.
struct Strips {
  const std::byte* from[kStrips];
  std::byte* to[kStrips];
  int64_t from_row[kStrips], to_row[kStrips];  ///< from one row to the next
  Divisor row[kStrips];                        ///< words per row
  int64_t words[kStrips];                      ///< words of all rows
  int count = 0;
};

// Kernels

/// Copies strips word by word. Blocks: (words of a strip, strips).
template <class Word>
__global__ void __launch_bounds__(kMapThreads) copy_strips(Strips s) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int p = static_cast<int>(blockIdx.y);
  const auto* const from = reinterpret_cast<const Word*>(s.from[p]);
  auto* const to = reinterpret_cast<Word*>(s.to[p]);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (kSplitUnroll * kMapThreads) + threadIdx.x;
  const Divisor row_words = s.row[p];
  Word word[kSplitUnroll];
  int64_t place[kSplitUnroll];
#pragma unroll
  for (int u = 0; u < kSplitUnroll; ++u) {
    const int64_t at = first + u * kMapThreads;
    if (at >= s.words[p]) continue;
    const int64_t row = row_words.quotient(static_cast<uint32_t>(at)), in_row = at - row * row_words.by;
    place[u] = row * s.to_row[p] + in_row;
    word[u] = from[row * s.from_row[p] + in_row];
  }
#pragma unroll
  for (int u = 0; u < kSplitUnroll; ++u) {
    const int64_t at = first + u * kMapThreads;
    if (at < s.words[p]) to[place[u]] = word[u];
  }
}

// Launchers

template <class Word>
void launch_strips(const Strips& s, const char* name, CudaStream stream) {
  int64_t most = 0;
  for (int p = 0; p < s.count; ++p) most = std::max(most, s.words[p]);
  const dim3 blocks(static_cast<unsigned>(ceil_div(most, kSplitUnroll * kMapThreads)), static_cast<unsigned>(s.count));
  launch(copy_strips<Word>, blocks, kMapThreads, 0, stream, name, s);
}

using Launch = void (*)(const Strips&, const char* name, CudaStream);

/// Returns the launcher for the widest words to which all offsets and addresses are aligned, and the bytes of a word.
/// `bits` is the bitwise or of all offsets and addresses.
std::pair<Launch, int64_t> launch_for(int64_t bits) {
  if (bits % 16 == 0) return {launch_strips<uint4>, 16};
  if (bits % 8 == 0) return {launch_strips<uint2>, 8};
  if (bits % 4 == 0) return {launch_strips<uint32_t>, 4};
  return {launch_strips<uint16_t>, 2};
}

int64_t address(const void* data) { return static_cast<int64_t>(reinterpret_cast<uintptr_t>(data)); }

/// Distributes the strips over launches, without empty ones.
std::vector<Strips> in_launches(const StripCopies& copies, int64_t word) {
  std::vector<Strips> launches;
  for (const StripCopy& copy : copies.strips) {
    if (copies.rows * copy.row == 0) continue;
    if (launches.empty() || launches.back().count == kStrips) launches.emplace_back();
    Strips& s = launches.back();
    const int p = s.count++;
    s.from[p] = copy.from;
    s.to[p] = copy.to;
    s.from_row[p] = copy.from_row / word;
    s.to_row[p] = copy.to_row / word;
    s.row[p] = Divisor(copy.row / word);
    s.words[p] = copies.rows * (copy.row / word);
    check(s.words[p] < (int64_t{1} << 31), "split and concat take parts of up to 2^31 words");
  }
  return launches;
}

template <PartsKernel kernel, bool blocks = false>
CudaKernel prepare_split(const CudaKernelCall& call) {
  const StripCopies copies = strip_copies(call, kernel, blocks);
  int64_t bits = 0;
  for (const StripCopy& s : copies.strips) bits |= s.from_row | s.to_row | s.row | address(s.from) | address(s.to);
  const auto [run, word] = launch_for(bits);
  const TensorArg& out = call.out[0];
  constexpr bool splits = kernel == PartsKernel::split || kernel == PartsKernel::split_pack;
  return [run = run, launches = in_launches(copies, word), has_gaps = copies.has_gaps, to = out.data,
          bytes = static_cast<size_t>(out.size() * byte_size(out.dtype))](CudaStream stream) {
    const char* const name = splits ? "split" : "concat";
    if (has_gaps) cuda_check(cudaMemsetAsync(to, 0, bytes, stream), name);
    for (const Strips& strips : launches) run(strips, name, stream);
  };
}

}  // namespace

extern const CudaKernels split_cuda = {{"split", prepare_split<PartsKernel::split>, kTakesF16},
                                       {"split_pack", prepare_split<PartsKernel::split_pack>, kTakesF16},
                                       {"split_apply", prepare_split<PartsKernel::split, true>, kTakesF16},
                                       {"concat", prepare_split<PartsKernel::concat>, kTakesF16},
                                       {"concat_pack", prepare_split<PartsKernel::concat_pack>, kTakesF16},
                                       {"concat_apply", prepare_split<PartsKernel::concat, true>, kTakesF16}};

}  // namespace trainctl
