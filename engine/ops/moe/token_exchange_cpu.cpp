// The exchange of tokens on CPUs; see token_exchange.h.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "engine/base/error.h"
#include "engine/ops/cpu/threads_cpu.h"
#include "engine/ops/kernel.h"

namespace trainctl {
namespace {

constexpr int64_t kLeastPackedNumbers = 65536;  ///< below this, waking a thread takes longer than the work

}  // namespace

/// ids [tokens, k] -> rows [ranks, most], places [ranks, tokens], counts [ranks]: which tokens each rank of experts
/// receives, and at which row of its block (token_exchange.cpp).
CpuKernel prepare_place_tokens(const KernelCall& call) {
  const int64_t k = call.in[0].shape.back(), tokens = call.in[0].size() / std::max<int64_t>(1, k);
  const int64_t experts_per_rank = call.attrs.integer("experts_per_rank"), ranks = call.attrs.integer("ranks"),
                most = call.attrs.integer("rows");
  return [=, ids = call.in[0].as<int32_t>(), rows = call.out[0].as<int32_t>(), places = call.out[1].as<int32_t>(),
          counts = call.out[2].as<int32_t>()] {
    std::fill_n(rows, ranks * most, -1);
    std::fill_n(places, ranks * tokens, -1);
    std::fill_n(counts, ranks, 0);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t j = 0; j < k; ++j) {
        const int32_t id = ids[t * k + j];
        const int64_t rank = id / experts_per_rank;
        if (id < 0 || rank >= ranks || places[rank * tokens + t] >= 0) continue;
        const int32_t row = counts[rank]++;
        if (row >= most)
          throw EnvError(fmt::format(
              "moe: the router sends more than {} of this rank's {} tokens to experts {} to {}, but a block "
              "of the exchange has no more rows\n  increase the layer's capacity, or set "
              "parallel.expert_method: gather",
              most, tokens, rank * experts_per_rank, (rank + 1) * experts_per_rank - 1));
        rows[rank * most + row] = static_cast<int32_t>(t);
        places[rank * tokens + t] = row;
      }
    }
  };
}

CpuKernel prepare_pack_tokens(const KernelCall& call) {
  const int64_t width = call.in[0].shape.back(), rows = call.in[1].size();
  const size_t bytes = static_cast<size_t>(width * byte_size(call.in[0].dtype));
  const int padding = call.in[0].dtype == DType::i32 ? 0xff : 0;  // the bytes of -1
  return [=, threads = call.threads, x = call.in[0].as<std::byte>(), tokens = call.in[1].as<int32_t>(),
          blocks = call.out[0].as<std::byte>()] {
    cpu::over_range(threads, rows, kLeastPackedNumbers / std::max<int64_t>(1, width), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        std::byte* const to = blocks + static_cast<size_t>(r) * bytes;
        if (tokens[r] < 0)
          std::memset(to, padding, bytes);
        else
          std::memcpy(to, x + static_cast<size_t>(tokens[r]) * bytes, bytes);
      }
    });
  };
}

/// blocks [ranks, rows, width], places [ranks, tokens] -> sums [tokens, width]: the sum of each token's rows over the
/// ranks, in their order.
CpuKernel prepare_sum_tokens(const KernelCall& call) {
  const int64_t ranks = call.in[0].shape[0], rows = call.in[0].shape[1], width = call.in[0].shape[2];
  const int64_t tokens = call.in[1].shape[1];
  return [=, threads = call.threads, blocks = call.in[0].as<float>(), places = call.in[1].as<int32_t>(),
          sums = call.out[0].as<float>()] {
    cpu::over_range(threads, tokens, kLeastPackedNumbers / std::max<int64_t>(1, width),
                    [&](int64_t begin, int64_t end) {
                      for (int64_t t = begin; t < end; ++t) {
                        float* const to = sums + t * width;
                        bool is_first = true;
                        for (int64_t r = 0; r < ranks; ++r) {
                          if (places[r * tokens + t] < 0) continue;
                          const float* const from = blocks + (r * rows + places[r * tokens + t]) * width;
                          if (is_first) std::copy_n(from, width, to);
                          for (int64_t i = 0; i < width && !is_first; ++i) to[i] += from[i];
                          is_first = false;
                        }
                        if (is_first) std::fill_n(to, width, 0.0f);
                      }
                    });
  };
}

}  // namespace trainctl
