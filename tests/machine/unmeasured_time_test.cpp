// Tests of kernel times that are predicted from data sheets: compared with kernels measured on an H100, and general
// laws.
#include "engine/machine/unmeasured_time.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <sstream>

#include "engine/machine/machine_text.h"

using namespace trainctl;

namespace {

Machine measured_h100() {
  const std::string file = std::string(TRAINCTL_SOURCE_DIR) + "/tests/bench/measured/h100_pair.json";
  std::stringstream text;
  text << std::ifstream(file).rdbuf();
  return machine_of_json(text.str(), file);
}

Seconds product_time(const Machine& machine, int64_t m, int64_t n, int64_t k) {
  const std::vector<TensorInfo> in = {{{m, k}, DType::bf16}, {{k, n}, DType::bf16}}, out = {{{m, n}, DType::bf16}};
  return kernel_time(machine, get_kernel("matmul"), in, out, {});
}

/// The operands of a measured call of `matmul`, whose samples say only their bytes: A[m,k], B[k,n], a bias of n
/// numbers, and matrices of m x n.
struct Call {
  std::vector<TensorInfo> in, out;
  int64_t least = 0;  ///< smallest of m, n and k

  Call(const KernelSample& sample, size_t outputs) {
    std::vector<double> elements;
    for (const double size : sample.sizes) elements.push_back(std::exp2(size) / byte_size(DType::bf16));
    const double k_squared = elements[0] * elements[1] / elements.back();
    const int64_t k = std::llround(std::sqrt(k_squared)), m = std::llround(elements[0] / std::sqrt(k_squared)),
                  n = std::llround(elements[1] / std::sqrt(k_squared));
    least = std::min({m, n, k});
    in = {{{m, k}, DType::bf16}, {{k, n}, DType::bf16}};
    for (size_t i = 2; i < elements.size(); ++i) {
      std::vector<TensorInfo>& operands = i + outputs < elements.size() ? in : out;
      operands.push_back({elements[i] < 1.5 * static_cast<double>(n) ? Shape{n} : Shape{m, n}, DType::bf16});
    }
  }
};

/// The errors of a machine: for all products whose m, n and k are at least 64, the logarithm of predicted over measured
/// time.
struct Errors {
  double mean = 0, size = 0;
  int calls = 0;
};

Errors errors_of_products(const Machine& machine) {
  Errors errors;
  const std::map<std::string, size_t> outputs = {{"matmul bf16 bf16 -> bf16", 1},
                                                 {"matmul bf16 bf16 bf16 -> bf16", 1},
                                                 {"matmul bf16 bf16 bf16 bf16 -> bf16", 1},
                                                 {"matmul bf16 bf16 bf16 -> bf16 bf16", 2}};
  for (const auto& [key, model] : measured_h100().kernels) {
    const auto found = outputs.find(key);
    if (found == outputs.end()) continue;
    for (const KernelSample& sample : model.samples()) {
      const Call call(sample, found->second);
      if (call.least < 64) continue;
      const double error = std::log(kernel_time(machine, get_kernel("matmul"), call.in, call.out, {}) / sample.seconds);
      errors.mean += error;
      errors.size += std::abs(error);
      ++errors.calls;
    }
  }
  errors.mean /= errors.calls;
  errors.size /= errors.calls;
  return errors;
}

}  // namespace

TEST_CASE("data sheets price the products that were measured on an H100 within 12 %, without waves of tiles 15 %") {
  Machine machine = *find_machine("h100x8");
  const Errors errors = errors_of_products(machine);
  MESSAGE(errors.calls << " products: mean " << errors.mean << ", size " << errors.size);
  CHECK(errors.calls > 50);
  CHECK(std::abs(errors.mean) < 0.06);
  CHECK(errors.size < 0.12);
  machine.multiprocessors = 0;
  CHECK(errors_of_products(machine).size > 0.15);
}

TEST_CASE("a product takes as long as the waves of its tiles") {
  const Machine& machine = *find_machine("h100x8");
  const auto time = [&](int64_t rows_of_tiles) {  // of 12 tiles each
    return (product_time(machine, 256 * rows_of_tiles, 12 * 128, 8192) - machine.launch).value;
  };
  CHECK(time(11) < 1.1 * time(10));
  CHECK(time(12) > 1.3 * time(11));
  CHECK(time(22) > 1.9 * time(11));
}

TEST_CASE("a product is never faster than the rates of its operations and its bytes, and more of it never is") {
  for (const char* name : {"a100x8", "h100x8", "h200x8"}) {
    const Machine& machine = *find_machine(name);
    for (const int64_t m : {1, 64, 100, 1000, 4096})
      for (const int64_t n : {1, 80, 768, 5000})
        for (const int64_t k : {1, 64, 1000, 8192}) {
          CAPTURE(m);
          CAPTURE(n);
          CAPTURE(k);
          const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
          const Seconds time = product_time(machine, m, n, k);
          CHECK(time >= machine.launch + Flops{flops} / machine.products.bf16);
          for (const Seconds more : {product_time(machine, 2 * m, n, k), product_time(machine, m, n + 64, k),
                                     product_time(machine, m, n, k + 1)})
            CHECK(more.value >= time.value * (1 - 1e-9));
        }
  }
}

TEST_CASE("faster products, memory or exponentials never cost time") {
  const KernelDef& attention = get_kernel("attention");
  const std::vector<TensorInfo> in = {{{4, 1024, 2304}, DType::bf16}},
                                out = {{{4, 1024, 768}, DType::bf16}, {{4, 12, 1, 1024}}};
  const Attrs attrs{{"head_dim", int64_t{64}}, {"group", int64_t{1}}, {"causal", true}, {"scale", 0.125}};
  const Machine& machine = *find_machine("a100x8");
  Machine faster = machine;
  const auto both_faster = [&] {
    CHECK(kernel_time(faster, attention, in, out, attrs) <= kernel_time(machine, attention, in, out, attrs));
    CHECK(product_time(faster, 1000, 1000, 1000) <= product_time(machine, 1000, 1000, 1000));
  };
  faster.exponentials_per_second *= 2;
  both_faster();
  faster.products.bf16 = 2 * faster.products.bf16;
  both_faster();
  faster.memory_rate = 2 * faster.memory_rate;
  both_faster();
}

TEST_CASE("attention takes the time of its exponentials beside that of its products") {
  Machine machine = *find_machine("h100x8");
  const std::vector<TensorInfo> in = {{{16, 1024, 2304}, DType::bf16}},
                                out = {{{16, 1024, 768}, DType::bf16}, {{16, 12, 1, 1024}}};
  const Attrs attrs{{"head_dim", int64_t{64}}, {"group", int64_t{1}}, {"causal", true}, {"scale", 0.125}};
  const auto time = [&] { return kernel_time(machine, get_kernel("attention"), in, out, attrs); };
  const Seconds both = time();
  const double scores = 16.0 * 12 * 1024 * 1024 / 2;
  machine.exponentials_per_second = 0;
  CHECK((both - time()).value == doctest::Approx(scores / find_machine("h100x8")->exponentials_per_second));
}
