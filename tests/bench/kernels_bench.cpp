// Speed of the CPU kernels: the matrix products of the reference MLP (784-512-512-1) next to oneDNN's, their sum as
// the lower bound of a training step, and nanoseconds an element for everything else.
//
//   bench_kernels [threads]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <vector>

#include "engine/ops/kernel.h"
#include "engine/ops/matmul/product_cpu.h"

namespace trainctl {
namespace {

/// Time of this thread only: time that other programs take does not count.
double thread_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double (*now)() = thread_seconds;  ///< wall_seconds with more than one thread

/// Seconds of the best of many short runs, so that other programs on the machine do not matter.
double best_seconds(const CpuKernel& kernel) {
  kernel();
  double best = 1e9, spent = 0;
  for (int i = 0; i < 2000 && spent < 0.25; ++i) {
    const double start = now();
    kernel();
    const double seconds = now() - start;
    best = std::min(best, seconds);
    spent += seconds;
  }
  return best;
}

using Memory = std::unique_ptr<float, decltype(&std::free)>;

Memory filled(int64_t n) {
  Memory memory(static_cast<float*>(std::aligned_alloc(64, static_cast<size_t>((n + 15) / 16 * 64))), std::free);
  for (int64_t i = 0; i < n; ++i) memory.get()[i] = static_cast<float>(i * 2654435761 % 1000) * 1e-3f;
  return memory;
}

/// Prints one row; returns our seconds.
double product(const char* what, int64_t m, int64_t n, int64_t k, bool ta, bool tb, int threads) {
  const Memory a = filled(m * k), b = filled(k * n), c = filled(m * n);
  cpu::Product p{
      .m = m, .n = n, .k = k, .a = a.get(), .b = b.get(), .c = c.get(), .transpose_a = ta, .transpose_b = tb};
  p.threads = threads;
  const double gflop = 2e-9 * static_cast<double>(m * n * k);
  const double seconds = best_seconds(cpu::prepare_product(p));
  const double peer = best_seconds(cpu::prepare_product_with_onednn(p));
  std::printf("  %-26s [%4ld,%4ld] x [%4ld,%4ld]  %8.1f us %6.1f GFLOP/s   oneDNN %8.1f us %6.1f   x%.2f", what, m, k,
              k, n, seconds * 1e6, gflop / seconds, peer * 1e6, gflop / peer, peer / seconds);
  if (threads == 1) {
    if (const cpu::Tiles* tiles = cpu::tiles_avx2()) {
      cpu::Product contiguous = p;
      contiguous.a_row = ta ? m : k;
      contiguous.b_row = tb ? k : n;
      contiguous.c_row = n;
      const Memory scratch = filled(tiles->scratch_floats(contiguous));
      const double narrow = best_seconds([&] { tiles->run(contiguous, scratch.get()); });
      std::printf("   AVX2 %6.1f", gflop / narrow);
    }
  }
  std::printf("\n");
  return seconds;
}

/// The parts of a training step other than its products: biases, relus, loss, update of 664,577 parameters.
void around_the_products(int64_t batch) {
  const int64_t parameters = 784 * 512 + 512 + 512 * 512 + 512 + 512 + 1;
  const Memory weights = filled(parameters), gradients = filled(parameters), x = filled(batch * 512),
               y = filled(batch * 512);
  const StepScalars scalars{.learning_rate = 1e-3f};
  const auto run = [&](const char* name, const Memory& in, const Memory& out, const Shape& from, const Shape& to) {
    KernelCall call{.scalars = &scalars};
    const auto arg = [](const Memory& memory, const Shape& shape) {
      return TensorArg{memory.get(), DType::f32, shape, shape, Shape(shape.size(), 0)};
    };
    call.in = {arg(in, from), arg(in, from)};
    call.out = {arg(out, to)};
    const double seconds = best_seconds(find_cpu_kernel(name)->prepare(call));
    std::printf("  %-26s %s  %8.1f us\n", name, to_string(from).c_str(), seconds * 1e6);
  };
  run("relu", x, y, {batch, 512}, {batch, 512});
  run("relu_grad", x, y, {batch, 512}, {batch, 512});
  run("bias_grad", x, y, {batch, 512}, {512});
  run("sgd_update", gradients, weights, {parameters}, {parameters});
}

void mlp(int64_t batch, int threads) {
  std::printf("MLP 784-512-512-1, batch %ld, %d thread%s\n", batch, threads, threads == 1 ? "" : "s");
  const int64_t sizes[] = {784, 512, 512, 1};
  double total = 0;
  for (int layer = 0; layer < 3; ++layer) {
    const int64_t k = sizes[layer], n = sizes[layer + 1];
    total += product("forward  y = x W^T", batch, n, k, false, true, threads);
    if (layer > 0) total += product("backward dx = dy W", batch, k, n, false, false, threads);
    total += product("backward dW = dy^T x", n, k, batch, true, false, threads);
  }
  std::printf("  all products of a step: %.1f us\n", total * 1e6);
  if (batch == 32) around_the_products(batch);
}

/// Other kernels, on [64, 1024].
void others() {
  const Shape full{64, 1024}, row{1024}, one{1};
  const StepScalars scalars{.learning_rate = 1e-3f};
  const auto time = [&](const char* name, const std::vector<Shape>& in, const std::vector<Shape>& out,
                        Attrs attrs = {}) {
    std::vector<Memory> memory;
    KernelCall call{.attrs = std::move(attrs), .scalars = &scalars};
    const auto arg = [&](const Shape& shape) {
      memory.push_back(filled(num_elements(shape)));
      TensorArg t{memory.back().get(), DType::f32, shape, shape, Shape(shape.size(), 0)};
      return t;
    };
    for (const Shape& shape : in) call.in.push_back(arg(shape));
    for (const Shape& shape : out) call.out.push_back(arg(shape));
    const double seconds = best_seconds(find_cpu_kernel(name)->prepare(call));
    std::printf("  %-26s %8.1f us  %.3f ns an element\n", name, seconds * 1e6, seconds * 1e9 / 65536);
  };
  std::printf("[64, 1024], 1 thread\n");
  for (const char* name : {"relu", "sigmoid", "tanh", "gelu"}) time(name, {full}, {full});
  for (const char* name : {"relu_grad", "gelu_grad", "add", "mae_grad"}) time(name, {full, full}, {full});
  time("add_bias", {full, row}, {full});
  time("bias_grad", {full}, {row});
  time("transpose", {full}, {{1024, 64}}, {{"perm", Ints{1, 0}}});
  time("softmax", {full}, {full}, {{"dim", int64_t{1}}});
  time("dropout", {full}, {full}, {{"p", 0.1}, {"key", int64_t{1}}});
  time("layer_norm", {full, row, row}, {full, {64}, {64}});
  time("layer_norm_grad", {full, full, {64}, {64}, row}, {full});
  time("sum_squares", {full}, {one});
  time("sgd_update", {full}, {full});
  time("adam_update", {full}, {full, full, full});
}

}  // namespace
}  // namespace trainctl

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  if (threads > 1) trainctl::now = trainctl::wall_seconds;
  for (int64_t batch : {4, 32, 256}) trainctl::mlp(batch, threads);
  std::printf("large\n");
  trainctl::product("forward", 2048, 1024, 1024, false, true, threads);
  trainctl::product("backward dx", 2048, 1024, 1024, false, false, threads);
  trainctl::product("backward dW", 1024, 1024, 2048, true, false, threads);
  trainctl::others();
}
