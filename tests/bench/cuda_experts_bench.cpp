// Speed of each grouped product of a mixture of experts (grouped_products_cuda.h) on a Hopper GPU, in bf16 with swiglu.
// Routes are random, or as equal as possible. Prints one line per product: its name, the type of its results,
// milliseconds and TFLOP/s.
//
//   bench_cuda_experts TOKENSxTOPxEXPERTSxFEATURESxHIDDEN[:balanced] …
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>

#include "engine/ops/moe/grouped_products_cuda.h"
#include "tests/bench/cuda_bench.h"

namespace trainctl {
namespace {

constexpr int kParts = 2;  ///< the two inputs of swiglu

/// Memory of bf16 or f32 with normal numbers, a block of them repeated.
class Numbers {
 public:
  Numbers(int64_t count, DType type) : memory_(count * byte_size(type)) {
    constexpr int64_t kBlock = 1 << 20;
    std::mt19937 random(7);
    std::normal_distribution<double> normal;
    std::vector<double> block(static_cast<size_t>(std::min(count, kBlock)));
    for (double& v : block) v = normal(random);
    for (int64_t at = 0; at < count; at += kBlock) {
      block.resize(static_cast<size_t>(std::min(kBlock, count - at)));
      upload(block, type, memory_.data() + at * byte_size(type));
    }
  }
  void* data() const { return memory_.data(); }

 private:
  DeviceMemory memory_;
};

const int* to_device(const std::vector<int>& values, std::unique_ptr<DeviceMemory>& memory) {
  const size_t bytes = values.size() * sizeof(int);
  memory = std::make_unique<DeviceMemory>(static_cast<int64_t>(bytes));
  must(cudaMemcpy(memory->data(), values.data(), bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
  return reinterpret_cast<const int*>(memory->data());
}

/// Each token's pairs with different experts, ordered by expert.
class Routes {
 public:
  Routes(const ExpertsSize& n, bool balanced) {
    std::mt19937 random(5);
    std::vector<std::vector<int>> pairs(static_cast<size_t>(n.experts));
    std::vector<int> ids(static_cast<size_t>(n.experts));
    std::iota(ids.begin(), ids.end(), 0);
    for (int64_t pair = 0; pair < n.rows; ++pair) {
      const auto slot = static_cast<size_t>(pair % n.top_k);
      std::swap(ids[slot], ids[slot + random() % (ids.size() - slot)]);
      const auto expert = balanced ? static_cast<size_t>(pair % n.experts) : static_cast<size_t>(ids[slot]);
      pairs[expert].push_back(static_cast<int>(pair));
    }
    std::vector<int> starts = {0}, token_of, pair_of;
    for (const std::vector<int>& of_expert : pairs) {
      for (const int pair : of_expert) {
        pair_of.push_back(pair);
        token_of.push_back(pair / static_cast<int>(n.top_k));
      }
      starts.push_back(static_cast<int>(pair_of.size()));
    }
    rows_.starts = to_device(starts, memory_[0]);
    rows_.token_of = to_device(token_of, memory_[1]);
    rows_.pair_of = to_device(pair_of, memory_[2]);
    rows_.experts = n.experts, rows_.rows = n.rows;
  }
  const grouped::Rows& rows() const { return rows_; }

 private:
  std::unique_ptr<DeviceMemory> memory_[3];
  grouped::Rows rows_;
};

void measure(const ExpertsSize& n, bool balanced) {
  constexpr auto bf16 = DType::bf16, f32 = DType::f32;
  const Routes routes(n, balanced);
  const grouped::Rows& rows = routes.rows();
  const int64_t behind = n.rows + grouped::kRowsRead;
  const Numbers x(n.tokens * n.features, bf16), dy(n.tokens * n.features, bf16), weights(n.rows, f32),
      up(n.experts * n.inner() * n.features, bf16), down(n.experts * n.features * n.hidden, bf16),
      u(behind * n.inner(), bf16), a(behind * n.hidden, bf16), y(n.rows * n.features, bf16);
  const DeviceMemory sums(n.experts * n.inner() * n.features * 4);
  if (!grouped::applies(n, x.data())) throw std::runtime_error("this size, or this GPU, has no such kernels");
  const grouped::Operand of_x{x.data(), n.features, true}, of_dy{dy.data(), n.features, true},
      of_u{u.data(), n.inner(), false}, of_a{a.data(), n.hidden, false};
  const auto row = [&](const char* name, int parts, const std::function<void(cudaStream_t)>& product) {
    const double us = time_graph(product, 4, 1).median;
    const double flops = 2.0 * static_cast<double>(n.rows * n.features * n.hidden) * parts;
    std::printf("%-22s %8.3f ms %6.0f TFLOP/s\n", name, us / 1e3, flops / us / 1e6);
  };
  row("up, swiglu", kParts, [&](cudaStream_t s) {
    grouped::up_product(s, rows, n, ExpertActivation::swiglu, x.data(), up.data(), u.data(), a.data());
  });
  row("down, weights", 1, [&](cudaStream_t s) {
    grouped::down_product(s, rows, n, a.data(), down.data(), weights.data(), false, y.data());
  });
  row("gradient of hidden", 1,
      [&](cudaStream_t s) { grouped::product(s, rows, of_dy, down.data(), n.hidden, a.data()); });
  row("gradient of tokens", kParts,
      [&](cudaStream_t s) { grouped::product(s, rows, of_u, up.data(), n.features, y.data()); });
  for (const DType type : {f32, bf16}) {
    const bool is_bf16 = type == bf16;
    row(is_bf16 ? "gradient of up, bf16" : "gradient of up, f32", kParts,
        [&](cudaStream_t s) { grouped::sum_over_rows(s, rows, of_u, of_x, sums.data(), is_bf16, false); });
    row(is_bf16 ? "gradient of down, bf16" : "gradient of down, f32", 1,
        [&](cudaStream_t s) { grouped::sum_over_rows(s, rows, of_dy, of_a, sums.data(), is_bf16, false); });
  }
}

int run(int words, char** word) {
  if (words < 2) {
    std::fprintf(stderr, "bench_cuda_experts TOKENSxTOPxEXPERTSxFEATURESxHIDDEN[:balanced] …\n");
    return 2;
  }
  for (int i = 1; i < words; ++i) {
    long long tokens = 0, top = 0, experts = 0, features = 0, hidden = 0;
    int end = 0;
    const int found =
        std::sscanf(word[i], "%lldx%lldx%lldx%lldx%lld%n", &tokens, &top, &experts, &features, &hidden, &end);
    const bool balanced = found == 5 && std::strcmp(word[i] + end, ":balanced") == 0;
    if (found != 5 || (word[i][end] != 0 && !balanced) || tokens < 1 || top < 1 || top > experts || features < 8 || hidden < 8) {
      std::fprintf(stderr, "%s: expected TOKENSxTOPxEXPERTSxFEATURESxHIDDEN[:balanced], with TOP at most EXPERTS\n", word[i]);
      return 2;
    }
    std::printf("%s\n", word[i]);
    ExpertsSize n;
    n.tokens = tokens, n.features = features, n.top_k = top, n.experts = experts, n.parts = kParts, n.hidden = hidden;
    n.rows = tokens * top;
    measure(n, balanced);
  }
  return 0;
}

}  // namespace
}  // namespace trainctl

int main(int words, char** word) {
  try {
    return trainctl::run(words, word);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_cuda_experts: %s\n", error.what());
    return 3;
  }
}
