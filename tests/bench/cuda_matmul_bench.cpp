// Matrix products on a GPU.
//
// bench_cuda_matmul check    every implementation of a product against a double reference
// bench_cuda_matmul shapes   the implementations side by side: microseconds and TFLOP/s
// bench_cuda_matmul once     the products of the reference MLP three times each, for a profiler
//   bench_cuda_matmul step JOB [FIELD=VALUE …]   a job's compiled step, one rank, as a captured graph: microseconds
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "engine/base/error.h"
#include "engine/ops/matmul/product_cuda.h"
#include "engine/ops/random.h"
#include "tests/bench/cuda_bench.h"

namespace trainctl {
void time_step(const std::string& job, const std::vector<std::string>& overrides);

namespace {

using cuda::Product;

enum class Way { thin, tile, cublas };
constexpr const char* kWays[] = {"thin", "tile", "cublas"};

std::optional<CudaKernel> prepare(Way way, const Product& p, CudaScratch& scratch) {
  return way == Way::thin   ? cuda::prepare_thin(p)
         : way == Way::tile ? cuda::prepare_tile(p)
                            : cuda::prepare_cublas(p, scratch);
}

std::vector<double> random_values(int64_t n, uint64_t key, DType type) {
  std::vector<double> values(static_cast<size_t>(n));
  for (size_t i = 0; i < values.size(); ++i) {
    const float v = 2.0f * philox_uniform(key, i, 0) - 1.0f;
    values[i] = type == DType::bf16 ? bf16_to_float(float_to_bf16(v)) : v;
  }
  return values;
}

/// A product with its memory and expected result.
struct Case {
  Product p;
  std::vector<double> a, b, c, bias, at;
  std::unique_ptr<DeviceMemory> memory[7];
  float rate = 0.25f;

  void* place(int i, const std::vector<double>& values, DType type) {
    memory[i] = std::make_unique<DeviceMemory>(static_cast<int64_t>(values.size()) * 4 + 64);
    std::byte* to = memory[i]->data() + shift;
    upload(values, type, to);
    return to;
  }
  int64_t shift = 0;  ///< bytes by which operands miss 256-byte alignment

  void allocate() {
    const uint64_t key = static_cast<uint64_t>(p.m * 1000003 + p.n * 1009 + p.k);
    p.a_step = p.m * p.k;
    p.c_step = p.m * p.n;
    a = random_values(p.batch * p.m * p.k, key, p.operands);
    b = random_values((p.b_step == 0 ? 1 : p.batch) * p.k * p.n, key + 1, p.operands);
    c = random_values(p.batch * p.m * p.n, key + 2, p.result);
    bias = random_values(p.n, key + 3, p.bias_type);
    at = random_values(p.batch * p.m * p.n, key + 4, p.result);
    p.a = place(0, a, p.operands);
    p.b = place(1, b, p.operands);
    p.c = place(2, c, p.result);
    if (p.bias != nullptr) p.bias = place(3, bias, p.bias_type);
    if (p.slope != Activation::none) p.slope_at = place(4, at, p.result);
    if (p.descend != nullptr) p.descend = static_cast<float*>(place(5, {rate}, DType::f32));
    if (p.a_sums != nullptr) p.a_sums = place(6, random_values(p.m, 7, p.result), p.result);
    if (p.b_sums != nullptr) p.b_sums = place(6, random_values(p.n, 7, p.result), p.result);
  }
  void reset() { upload(c, p.result, p.c); }

  double a_of(int64_t z, int64_t i, int64_t kk) const {
    return a[static_cast<size_t>(z * p.a_step + (p.transpose_a ? kk * p.m + i : i * p.k + kk))];
  }
  double b_of(int64_t z, int64_t kk, int64_t j) const {
    return b[static_cast<size_t>(z * p.b_step + (p.transpose_b ? j * p.k + kk : kk * p.n + j))];
  }
  std::vector<double> expected() const {
    std::vector<double> out(c.size());
    for (int64_t z = 0; z < p.batch; ++z) {
      for (int64_t i = 0; i < p.m; ++i) {
        for (int64_t j = 0; j < p.n; ++j) {
          double sum = 0;
          for (int64_t kk = 0; kk < p.k; ++kk) sum += a_of(z, i, kk) * b_of(z, kk, j);
          const auto e = static_cast<size_t>(z * p.c_step + i * p.n + j);
          double v = (p.descend != nullptr ? -double{rate} : 1.0) * sum + (p.accumulate ? c[e] : 0.0);
          if (p.bias != nullptr) v += bias[static_cast<size_t>(j)];
          if (p.activation == Activation::relu) v = std::max(v, 0.0);
          if (p.slope == Activation::relu) v = at[e] > 0 ? v : 0.0;
          out[e] = v;
        }
      }
    }
    return out;
  }
  std::vector<double> expected_sums() const {
    const bool of_a = p.a_sums != nullptr;
    std::vector<double> sums = random_values(of_a ? p.m : p.n, 7, p.result);
    for (size_t i = 0; i < sums.size(); ++i) {
      double sum = 0;
      const auto at_i = static_cast<int64_t>(i);
      for (int64_t kk = 0; kk < p.k; ++kk) sum += of_a ? a_of(0, at_i, kk) : b_of(0, kk, at_i);
      sums[i] = (p.descend != nullptr ? -double{rate} : 1.0) * sum + (p.sums_accumulate ? sums[i] : 0.0);
    }
    return sums;
  }
};

double error(const std::vector<double>& got, const std::vector<double>& expected) {
  double off = 0, size = 1e-30;
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(got[i])) return INFINITY;
    off += (got[i] - expected[i]) * (got[i] - expected[i]);
    size += expected[i] * expected[i];
  }
  return std::sqrt(off / size);
}

struct Tally {
  int run = 0, failed = 0, left_out = 0;
  double worst[3][3] = {};  ///< by implementation; f32, tf32, bf16
};

void check_case(const Product& form, Way way, int64_t shift, Tally& tally) {
  Case one;
  one.p = form;
  one.shift = shift;
  one.allocate();
  CudaScratch scratch;
  const std::optional<CudaKernel> kernel = prepare(way, one.p, scratch);
  if (!kernel) {
    ++tally.left_out;
    return;
  }
  const DeviceMemory workspace(scratch.bytes());
  scratch.set_memory(workspace.data());
  (*kernel)(nullptr);
  must(cudaDeviceSynchronize(), "a product");
  const size_t n = one.c.size();
  const std::vector<double> got = download(one.p.c, one.p.result, n);
  double off = error(got, one.expected());
  if (one.p.a_sums != nullptr || one.p.b_sums != nullptr) {
    const std::vector<double> sums = one.expected_sums();
    off = std::max(
        off, error(download(one.p.a_sums != nullptr ? one.p.a_sums : one.p.b_sums, one.p.result, sums.size()), sums));
  }
  const int kind = one.p.operands == DType::bf16 ? 2 : one.p.tf32 ? 1 : 0;
  const double limit = kind == 2 ? (one.p.result == DType::bf16 ? 1e-2 : 1e-5) : kind == 1 ? 2e-3 : 1e-5;
  double& worst = tally.worst[static_cast<int>(way)][kind];
  worst = std::max(worst, off);
  ++tally.run;
  if (!(off < limit)) {
    ++tally.failed;
    std::printf(
        "WRONG %s m %ld n %ld k %ld batch %ld ta %d tb %d bias %d relu %d slope %d acc %d descend %d sums %d%d "
        "bf16 %d%d tf32 %d shift %ld: %.3g\n",
        kWays[static_cast<int>(way)], form.m, form.n, form.k, form.batch, form.transpose_a, form.transpose_b,
        form.bias != nullptr, int(form.activation), int(form.slope), form.accumulate, form.descend != nullptr,
        form.a_sums != nullptr, form.b_sums != nullptr, form.operands == DType::bf16, form.result == DType::bf16,
        form.tf32, shift, off);
  }
  one.reset();
  if (one.p.a_sums == nullptr && one.p.b_sums == nullptr) {
    (*kernel)(nullptr);
    if (download(one.p.c, one.p.result, n) != got) {
      ++tally.failed;
      std::printf("NOT THE SAME TWICE %s m %ld n %ld k %ld\n", kWays[static_cast<int>(way)], form.m, form.n, form.k);
    }
  }
}

/// Every form that an op requests.
std::vector<Product> forms(int64_t m, int64_t n, int64_t k) {
  std::vector<Product> all;
  static char there;  // marks an operand as wanted
  const Product plain{.m = m, .n = n, .k = k};
  for (int t = 0; t < 4; ++t) {
    Product p = plain;
    p.transpose_a = (t & 1) != 0;
    p.transpose_b = (t & 2) != 0;
    all.push_back(p);
    Product more = p;
    more.bias = &there;
    more.activation = Activation::relu;
    all.push_back(more);
    Product slope = p;
    slope.slope = Activation::relu;
    all.push_back(slope);
    Product added = p;
    added.accumulate = true;
    all.push_back(added);
    Product batched = p;
    batched.batch = 3;
    batched.b_step = k * n;
    all.push_back(batched);
  }
  for (const bool accumulate : {false, true}) {
    Product grad = plain;
    grad.transpose_a = true;
    grad.accumulate = grad.sums_accumulate = accumulate;
    grad.a_sums = &there;
    all.push_back(grad);
    std::swap(grad.a_sums, grad.b_sums);
    if (accumulate) grad.descend = reinterpret_cast<float*>(&there);
    all.push_back(grad);
  }
  Product descend = plain;
  descend.transpose_a = descend.accumulate = true;
  descend.descend = reinterpret_cast<float*>(&there);
  all.push_back(descend);
  return all;
}

int run_checks() {
  Tally tally;
  const int64_t shapes[][3] = {{1, 1, 1},   {32, 160, 784}, {32, 1, 512},  {1, 512, 32}, {512, 96, 32},
                               {7, 11, 13}, {37, 53, 129},  {64, 64, 64},  {1, 37, 301}, {101, 103, 97},
                               {40, 8, 72}, {3, 2, 1031},   {130, 70, 260}};
  for (const auto& [m, n, k] : shapes) {
    for (const Product& form : forms(m, n, k)) {
      for (const Way way : {Way::thin, Way::tile, Way::cublas}) check_case(form, way, 0, tally);
      for (const Way way : {Way::thin, Way::tile, Way::cublas}) check_case(form, way, 4, tally);
      Product tf32 = form;
      tf32.tf32 = true;
      check_case(tf32, Way::cublas, 0, tally);
      Product bf16 = form;
      bf16.operands = DType::bf16;
      check_case(bf16, Way::cublas, 0, tally);
      check_case(bf16, Way::cublas, 2 * 4, tally);
      bf16.result = bf16.bias_type = DType::bf16;
      if (form.descend == nullptr && form.a_sums == nullptr && form.b_sums == nullptr)
        check_case(bf16, Way::cublas, 0, tally);
    }
  }
  std::printf("check: %d products, %d wrong, %d forms that a way does not make\n", tally.run, tally.failed,
              tally.left_out);
  for (int way = 0; way < 3; ++way)
    std::printf("  %-6s worst error f32 %.2g  tf32 %.2g  bf16 %.2g\n", kWays[way], tally.worst[way][0],
                tally.worst[way][1], tally.worst[way][2]);
  return tally.failed == 0 ? 0 : 1;
}

/// Repeats a block of random numbers: generating a large operand element by element would take long.
std::unique_ptr<DeviceMemory> filled(int64_t n, DType type) {
  constexpr int64_t kBlock = 1 << 16;
  auto memory = std::make_unique<DeviceMemory>((n + kBlock) * byte_size(type));
  upload(random_values(kBlock, 1, type), type, memory->data());
  for (int64_t at = kBlock; at < n; at += kBlock) {
    must(cudaMemcpyAsync(memory->data() + at * byte_size(type), memory->data(), kBlock * byte_size(type),
                         cudaMemcpyDeviceToDevice),
         "cudaMemcpyAsync");
  }
  must(cudaDeviceSynchronize(), "filling");
  return memory;
}

/// With `runs`, only that many plain launches with the choice of prepare_product.
void time_shape(const char* what, Product p, int runs = 0) {
  const auto a = filled(p.m * p.k, p.operands), b = filled(p.k * p.n, p.operands), c = filled(p.m * p.n, p.result);
  const auto bias = filled(p.n, p.bias_type), at = filled(p.m * p.n, p.result), rate = filled(1, DType::f32);
  p.a = a->data();
  p.b = b->data();
  p.c = c->data();
  if (p.bias != nullptr) p.bias = bias->data();
  if (p.slope != Activation::none) p.slope_at = at->data();
  if (p.descend != nullptr) p.descend = reinterpret_cast<const float*>(rate->data());
  if (runs > 0) {
    CudaScratch scratch;
    const std::optional<CudaKernel> kernel = cuda::prepare_product(p, scratch);
    const DeviceMemory workspace(scratch.bytes());
    scratch.set_memory(workspace.data());
    for (int i = 0; i < runs; ++i) (*kernel)(nullptr);
    must(cudaDeviceSynchronize(), "runs");
    return;
  }
  const double flop = 2.0 * double(p.m) * double(p.n) * double(p.k);
  const bool large = flop > 1e10;
  std::printf("  %-22s m %5ld n %5ld k %5ld  floor %6.2f us  ", what, p.m, p.n, p.k,
              flop / (p.operands == DType::bf16 ? 800e6
                      : p.tf32                  ? 400e6
                                                : 67e6));
  for (const Way way : {Way::thin, Way::tile, Way::cublas}) {
    CudaScratch scratch;
    const bool tiny = way != Way::cublas && (large || (way == Way::thin && flop > 5e8));
    const std::optional<CudaKernel> kernel = tiny ? std::nullopt : prepare(way, p, scratch);
    if (!kernel) {
      std::printf("%s        -            ", kWays[static_cast<int>(way)]);
      continue;
    }
    const DeviceMemory workspace(scratch.bytes());
    scratch.set_memory(workspace.data());
    const Microseconds t = time_graph([&](cudaStream_t s) { (*kernel)(s); }, large ? 1 : 20, large ? 5 : 20, 11);
    std::printf("%s %8.2f us %6.1f TF  ", kWays[static_cast<int>(way)], t.median, flop / t.median * 1e-6);
  }
  std::printf("\n");
}

/// The products of the reference MLP's step, three times each, for a profiler.
void run_once() {
  static char there;
  for (const int64_t m : {32, 256}) {
    Product forward{.m = m, .n = 512, .k = 784};
    forward.transpose_b = true;
    forward.bias = &there;
    forward.activation = Activation::relu;
    Product grad{.m = m, .n = 512, .k = 512};
    grad.slope = Activation::relu;
    Product weight{.m = 512, .n = 784, .k = m};
    weight.transpose_a = weight.accumulate = true;
    weight.descend = reinterpret_cast<float*>(&there);
    for (const Product& p : {forward, grad, weight}) time_shape("profiled", p, 3);
  }
}

void time_shapes() {
  static char there;
  for (const int64_t m : {32, 256}) {
    const auto forward = [&](int64_t k, int64_t n) {
      Product p{.m = m, .n = n, .k = k};
      p.transpose_b = true;
      p.bias = &there;
      p.activation = Activation::relu;
      time_shape("forward bias relu", p);
    };
    const auto input_grad = [&](int64_t k, int64_t n) {
      Product p{.m = m, .n = n, .k = k};
      p.slope = Activation::relu;
      time_shape("dX relu", p);
    };
    const auto weight_grad = [&](int64_t rows, int64_t cols) {
      Product p{.m = rows, .n = cols, .k = m};
      p.transpose_a = p.accumulate = true;
      p.descend = reinterpret_cast<float*>(&there);
      time_shape("dW descend", p);
    };
    forward(784, 512);
    forward(512, 512);
    forward(512, 1);
    input_grad(512, 512);
    input_grad(1, 512);
    weight_grad(512, 784);
    weight_grad(512, 512);
    weight_grad(1, 512);
  }
  for (const int64_t size : {512, 1024, 2048}) {
    Product p{.m = size, .n = size, .k = size};
    p.transpose_b = true;
    time_shape("f32", p);
  }
  for (const int64_t size : {4096, 8192}) {
    Product p{.m = size, .n = size, .k = size};
    p.operands = p.result = p.bias_type = DType::bf16;
    p.transpose_b = true;
    time_shape("bf16", p);
    p.bias = &there;
    p.activation = Activation::relu;
    time_shape("bf16 bias relu", p);
  }
}

}  // namespace
}  // namespace trainctl

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "check") return trainctl::run_checks();
  if (what == "once") {
    trainctl::run_once();
    return 0;
  }
  if (what == "shapes") {
    trainctl::time_shapes();
    return 0;
  }
  if (what == "step" && argc > 2) {
    trainctl::time_step(argv[2], std::vector<std::string>(argv + 3, argv + argc));
    return 0;
  }
  std::fprintf(stderr, "usage: bench_cuda_matmul check | shapes | once | step JOB [FIELD=VALUE …]\n");
  return 2;
}
