// Trials of products, which decide whether two ways to compute a product have the same bits.
#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <set>
#include <vector>

#include "engine/ops/matmul/measure_product_cuda.h"
#include "engine/ops/small_step/tickets_cuda.h"
#include "tests/op_cases/cuda/cuda_device.h"

namespace trainctl {
namespace {

using cuda::Product;
using cuda::ProductTrial;

ProductTrial::Run run_of(std::optional<CudaKernel> kernel) {
  REQUIRE(kernel.has_value());
  return [kernel](const void*, const void*, void*, CudaStream stream) {
    (*kernel)(stream);
    return true;
  };
}

/// Memory that a trial must not touch: an address that no device has.
template <class T>
T* nowhere() {
  return reinterpret_cast<T*>(uintptr_t{64});
}

Product product_of(int64_t m, int64_t n, int64_t k) {
  Product p{.m = m, .n = n, .k = k, .a = nowhere<float>(), .b = nowhere<float>(), .c = nowhere<float>()};
  p.transpose_a = true;
  return p;
}

}  // namespace

TEST_CASE(
    "cuda: a trial of a product has the same bits each time, in memory of its own, whatever is done to its sums") {
  if (!gpu_is_here()) return;
  std::vector<Product> products(3, product_of(40, 36, 70));
  products[0].bias = nowhere<float>();
  products[0].activation = Activation::relu;
  products[1].slope = Activation::relu;
  products[1].slope_at = nowhere<float>();
  products[2].accumulate = products[2].sums_accumulate = true;
  products[2].a_sums = nowhere<float>();
  products[2].b_sums = nowhere<float>();
  std::set<uint64_t> all;
  for (const Product& p : products) {
    ProductTrial trial(p, 0);
    const ProductTrial::Run run = run_of(cuda::prepare_tile(trial.product()));
    const std::optional<uint64_t> first = trial.bits(run);
    REQUIRE(first.has_value());
    CHECK(trial.milliseconds(run) >= 0);
    CHECK(trial.bits(run) == first);
    ProductTrial again(p, 0);
    CHECK(again.bits(run_of(cuda::prepare_tile(again.product()))) == first);
    all.insert(*first);
  }
  CHECK(all.size() == products.size());
}

TEST_CASE("cuda: a trial tells products apart that add in another order, or differ only in the sums of an operand") {
  if (!gpu_is_here()) return;
  CudaScratch scratch;
  const Product p = product_of(40, 36, 70);
  ProductTrial trial(p, 0);
  const std::optional<uint64_t> by_tiles = trial.bits(run_of(cuda::prepare_tile(trial.product())));
  REQUIRE(by_tiles.has_value());
  Product in_parts = trial.product();  // the second half of k is added to the sums of the first
  in_parts.k = 40;
  Product rest = trial.product();
  rest.k = 30;
  rest.a = static_cast<const float*>(rest.a) + 40 * rest.m;
  rest.b = static_cast<const float*>(rest.b) + 40 * rest.n;
  rest.accumulate = true;
  const auto first_part = cuda::prepare_tile(in_parts), second_part = cuda::prepare_tile(rest);
  REQUIRE(first_part.has_value());
  REQUIRE(second_part.has_value());
  const auto both = trial.bits([&](const void*, const void*, void*, CudaStream stream) {
    (*first_part)(stream);
    (*second_part)(stream);
    return true;
  });
  REQUIRE(both.has_value());
  CHECK(both != by_tiles);

  Product with_sums = p;
  with_sums.a_sums = nowhere<float>();
  ProductTrial of_sums(with_sums, 0);
  Product without = of_sums.product();
  without.a_sums = nullptr;
  CHECK(of_sums.bits(run_of(cuda::prepare_tile(of_sums.product()))) !=
        of_sums.bits(run_of(cuda::prepare_tile(without))));
}

TEST_CASE("cuda: a trial that is refused has no bits and no time") {
  if (!gpu_is_here()) return;
  ProductTrial trial(product_of(8, 8, 8), 0);
  const ProductTrial::Run refused = [](const void*, const void*, void*, CudaStream) { return false; };
  CHECK(trial.bits(refused) == std::nullopt);
  CHECK(trial.milliseconds(refused) < 0);
}

TEST_CASE("cuda: split sums always get counters, which begin at 0, so they never add in another order") {
  if (!gpu_is_here()) return;
  constexpr int kCounters = 1 << 18;  // as many as the pool has
  const Tickets all[] = {take_tickets(kCounters), take_tickets(kCounters), take_tickets(5)};
  std::set<const unsigned*> distinct;
  for (const Tickets& tickets : all) {
    REQUIRE(tickets != nullptr);
    distinct.insert(tickets.get());
    std::vector<unsigned> values(5, 1);
    REQUIRE(cudaMemcpy(values.data(), tickets.get(), values.size() * sizeof(unsigned), cudaMemcpyDeviceToHost) ==
            cudaSuccess);
    CHECK(values == std::vector<unsigned>(5, 0));
  }
  CHECK(distinct.size() == 3);
}

}  // namespace trainctl
