// Speed of the CUDA kernels. Large tensors: GB/s, counting each operand once, next to a copy by the driver in the same
// run. Small tensors, as in the reference MLP: microseconds of one kernel in a chain of a captured graph.
//
//   bench_cuda_kernels [part of a name]
#include <cstdio>
#include <cstring>
#include <random>

#include "engine/ops/op_def.h"
#include "tests/bench/cuda_bench.h"

namespace trainctl {
namespace {

constexpr auto f32 = DType::f32;
constexpr auto bf16 = DType::bf16;
constexpr auto i32 = DType::i32;

struct Operand {
  Shape shape;
  DType dtype = f32;
  int64_t below = 0;  ///< i32: values in [0, below)
};

struct Row {
  const char* op;
  std::vector<Operand> in, out;
  Attrs attrs = {};
  double bytes = -1;  ///< bytes that must move; -1: all operands once
};

/// Normal numbers, or ids; a few megabytes, repeated for larger operands.
void fill(const Operand& operand, std::byte* to) {
  constexpr size_t kBlock = 1 << 20;
  static std::mt19937 random(7);
  const auto n = static_cast<size_t>(num_elements(operand.shape)), size = static_cast<size_t>(byte_size(operand.dtype));
  std::vector<std::byte> block(std::min(n, kBlock) * size);
  std::normal_distribution<float> normal;
  for (size_t i = 0; i < block.size() / size; ++i) {
    if (operand.dtype == i32) {
      reinterpret_cast<int32_t*>(block.data())[i] =
          static_cast<int32_t>(random() % static_cast<uint64_t>(operand.below));
    } else if (operand.dtype == f32) {
      reinterpret_cast<float*>(block.data())[i] = std::abs(normal(random));
    } else {
      reinterpret_cast<uint16_t*>(block.data())[i] = float_to_bf16(std::abs(normal(random)));
    }
  }
  for (size_t at = 0; at < n; at += kBlock) {
    must(cudaMemcpy(to + at * size, block.data(), std::min(kBlock, n - at) * size, cudaMemcpyHostToDevice), "fill");
  }
}

/// A row and its memory.
class Prepared {
 public:
  explicit Prepared(const Row& row) : scalars_(sizeof(StepScalars)) {
    const StepScalars scalars{.learning_rate = 1e-6f, .adam_bias1 = 0.1f, .adam_bias2 = 0.001f};
    must(cudaMemcpy(scalars_.data(), &scalars, sizeof scalars, cudaMemcpyHostToDevice), "scalars");
    CudaKernelCall call;
    call.attrs = row.attrs;
    call.scalars = reinterpret_cast<const StepScalars*>(scalars_.data());
    call.scratch = &scratch_;
    for (const Operand& o : row.in) call.in.push_back(arg(o));
    for (const Operand& o : row.out) call.out.push_back(arg(o));
    const CudaKernelDef* kernel = find_cuda_kernel(row.op);
    if (kernel == nullptr) throw std::runtime_error(std::string("no CUDA kernel ") + row.op);
    run_ = kernel->prepare(call);
    memory_.push_back(std::make_unique<DeviceMemory>(scratch_.bytes()));
    scratch_.set_memory(memory_.back()->data());
  }
  void operator()(cudaStream_t stream) const { run_(stream); }

 private:
  TensorArg arg(const Operand& o) {
    memory_.push_back(std::make_unique<DeviceMemory>(num_elements(o.shape) * byte_size(o.dtype)));
    fill(o, memory_.back()->data());
    return {memory_.back()->data(), o.dtype, o.shape, o.shape, Shape(o.shape.size(), 0)};
  }

  DeviceMemory scalars_;
  CudaScratch scratch_;
  std::vector<std::unique_ptr<DeviceMemory>> memory_;
  CudaKernel run_;
};

double bytes_of(const Row& row) {
  if (row.bytes >= 0) return row.bytes;
  double bytes = 0;
  for (const auto* side : {&row.in, &row.out}) {
    for (const Operand& o : *side) bytes += static_cast<double>(num_elements(o.shape) * byte_size(o.dtype));
  }
  return bytes;
}

std::string text_of(const Row& row) {
  std::string text;
  for (const Operand& o : row.in)
    text += to_string(o.shape) + (o.dtype == f32 ? "" : std::string(to_string(o.dtype))) + " ";
  return text;
}

std::vector<Row> large_rows(DType t) {
  const Shape full{65536, 1024}, row{1024}, rows{65536}, one{1};
  const Operand x{full, t}, w{row, f32}, stat{rows, f32}, side{row, t};
  const double n = 65536.0 * 1024, size = static_cast<double>(byte_size(t));
  const Attrs dim{{"dim", int64_t{1}}}, eps{{"eps", 1e-5}}, count{{"eps", 1e-5}, {"count", int64_t{65536}}};
  const Shape image{64, 256, 64, 64}, features{256};
  const Operand map{image, t}, feature{features, f32};
  const Operand last{{64, 64, 64, 256}, t}, channels{features, t}, groups{{64, 32}}, half{{65536, 512}, t};
  const Attrs of_map{{"eps", 1e-5}, {"count", int64_t{64 * 64 * 64}}};
  const Attrs of_last{{"dim", int64_t{3}}, {"eps", 1e-5}, {"count", int64_t{64 * 64 * 64}}};
  std::vector<Row> all = {
      {"relu", {x}, {x}},
      {"gelu", {x}, {x}},
      {"tanh", {x}, {x}},
      {"relu_grad", {x, x}, {x}},
      {"gelu_grad", {x, x}, {x}},
      {"add", {x, x}, {x}},
      {"add_bias", {x, side}, {x}},
      {"bias_grad", {x}, {w}},
      {"reduce_sum", {x}, {stat}, {{"dims", Ints{1}}}},
      {"reduce_sum", {x}, {{one}}, {{"dims", Ints{0, 1}}}},
      {"reduce_sum", {{{64, 1024, 1024}, t}}, {{{64, 1024}}}, {{"dims", Ints{1}}}},
      {"broadcast_to", {{rows, t}}, {x}, {{"dims", Ints{1}}}},
      {"transpose", {x}, {{{1024, 65536}, t}}, {{"perm", Ints{1, 0}}}},
      {"transpose", {{{64, 1024, 16, 64}, t}}, {{{64, 16, 1024, 64}, t}}, {{"perm", Ints{0, 2, 1, 3}}}},
      {"reshape", {x}, {x}, {{"shape", full}}},
      {"softmax", {x}, {x}, dim},
      {"softmax_grad", {x, x}, {x}, dim},
      {"dropout", {x}, {x}, {{"p", 0.1}, {"key", int64_t{1}}}},
      {"layer_norm", {x, side, side}, {x, stat, stat}, eps},
      {"layer_norm_grad", {x, x, stat, stat, side}, {x}},
      {"layer_norm_param_grad", {x, x, stat, stat}, {w, w}},
      {"rms_norm", {x, side}, {x, stat}, eps},
      {"rms_norm_grad", {x, x, stat, side}, {x}},
      {"rms_norm_param_grad", {x, x, stat}, {w}},
      {"group_norm", {map, channels, channels}, {map, groups, groups}, {{"eps", 1e-5}, {"groups", int64_t{32}}}},
      {"group_norm_grad", {map, map, groups, groups, channels}, {map}},
      {"group_norm_param_grad", {map, map, groups, groups}, {feature, feature}},
      {"slice", {x}, {half}, {{"begin", Ints{0, 512}}, {"size", half.shape}}, n * size},
      {"pad", {half}, {x}, {{"before", Ints{0, 512}}, {"after", Ints{0, 0}}, {"value", 0.0}}},
      {"reduce_max", {x}, {{rows, t}}, {{"dims", Ints{1}}}},
      {"reduce_max", {map}, {{{64, 64, 64}, t}}, {{"dims", Ints{1}}}},
      {"reduce_max_grad", {{rows, t}, x, {rows, t}}, {x}, {{"dims", Ints{1}}}, 3 * n * size},
      {"position_embedding", {{{64, 1024, 1024}, t}, {{1024, 1024}, t}}, {{{64, 1024, 1024}, t}}},
      {"batch_norm_mean", {map}, {feature}, of_map},
      {"batch_norm_var", {map, feature}, {feature}, of_map},
      {"batch_norm", {map, feature, feature, {features, t}, {features, t}}, {map}, of_map},
      {"batch_norm_grad_stats", {map, map, feature, feature}, {feature, feature}, of_map},
      {"batch_norm_grad", {map, map, feature, feature, feature, feature, {features, t}}, {map}, of_map},
      {"batch_norm_mean", {last}, {feature}, of_last},
      {"batch_norm_var", {last, feature}, {feature}, of_last},
      {"batch_norm", {last, feature, feature, channels, channels}, {last}, of_last},
      {"batch_norm_grad_stats", {last, last, feature, feature}, {feature, feature}, of_last},
      {"batch_norm_grad", {last, last, feature, feature, feature, feature, channels}, {last}, of_last},
      {"batch_norm_var", {x, w}, {w}, count},
      {"batch_norm", {x, w, w, side, side}, {x}, count},
      {"mse", {x, {full}}, {{one}}},
      {"mse_grad", {x, {full}}, {x}},
      {"softmax_cross_entropy", {x, {rows, i32, 1024}}, {{one}}},
      {"softmax_cross_entropy_grad", {x, {rows, i32, 1024}}, {x}},
      {"softmax_cross_entropy_grad", {{{4096, 50257}, t}, {{4096}, i32, 50257}}, {{{4096, 50257}, t}}},
      {"softmax", {{{4096, 16384}, t}}, {{{4096, 16384}, t}}, dim},
      {"embedding", {{rows, i32, 50000}, {{50000, 1024}, t}}, {x}, {}, 2 * n * size},
      {"embedding_grad", {x, {rows, i32, 50000}}, {{{50000, 1024}}}, {}, n * size + 50000.0 * 1024 * 4},
      {"embedding_grad", {x, {rows, i32, 1}}, {{{50000, 1024}}}, {}, n * size + 50000.0 * 1024 * 4},  // a single id
      {"accumulate", {x}, {{full}}, {}, n * (size + 8)},
  };
  if (t != f32) return all;
  const Operand flat{{1 << 26}};
  const double m = 1 << 26;
  all.insert(all.end(),
             {
                 {"sum_squares", {flat}, {{one}}},
                 {"sgd_update", {flat}, {flat}, {}, 12 * m},
                 {"sgd_update", {flat}, {flat, flat}, {{"momentum", 0.9}}, 20 * m},
                 {"adam_update", {flat}, {flat, flat, flat}, {}, 28 * m},
                 {"adam_update", {flat}, {flat, flat, flat, {{1 << 26}, bf16}}, {}, 30 * m},
                 {"pack", {flat}, {flat}, {{"outer", int64_t{64}}, {"parts", int64_t{8}}, {"inner", int64_t{131072}}}},
                 {"zero", {}, {flat}},
             });
  return all;
}

/// The kernels in a step of the reference MLP other than its products, and others of that size.
std::vector<Row> small_rows() {
  const Operand a{{32, 512}}, b{{512}}, p{{32, 1}}, one{{1}}, w{{664577}};
  const Operand logits{{32, 10}}, labels{{32}, i32, 10};
  return {
      {"relu", {a}, {a}},
      {"relu_grad", {a, a}, {a}},
      {"add_bias", {a, b}, {a}},
      {"bias_grad", {a}, {b}},
      {"bias_grad", {p}, {one}},
      {"mae", {p, p}, {one}},
      {"mae_grad", {p, p}, {p}},
      {"sgd_update", {w}, {w}},
      {"adam_update", {w}, {w, w, w}},
      {"sum_squares", {w}, {one}},
      {"softmax", {a}, {a}, {{"dim", int64_t{1}}}},
      {"softmax_cross_entropy", {logits, labels}, {one}},
      {"softmax_cross_entropy_grad", {logits, labels}, {logits}},
      {"layer_norm", {a, b, b}, {a, {{32}}, {{32}}}},
      {"layer_norm_grad", {a, a, {{32}}, {{32}}, b}, {a}},
      {"layer_norm_param_grad", {a, a, {{32}}, {{32}}}, {b, b}},
      {"embedding_grad", {{{32, 64}}, {{32}, i32, 100}}, {{{100, 64}}}},
      {"transpose", {a}, {{{512, 32}}}, {{"perm", Ints{1, 0}}}},
      {"zero", {}, {a}},
  };
}

/// cudaMemcpyAsync from device to device, in a stream: the driver's fastest way. (In a graph it is slower.)
double copy_gb_per_s() {
  const int64_t bytes = int64_t{1} << 29;
  DeviceMemory from(bytes), to(bytes);
  must(cudaMemset(from.data(), 1, static_cast<size_t>(bytes)), "memset");
  cudaEvent_t start, end;
  must(cudaEventCreate(&start), "event");
  must(cudaEventCreate(&end), "event");
  std::vector<float> times;
  for (int i = 0; i < 12; ++i) {
    float milliseconds = 0;
    must(cudaEventRecord(start, nullptr), "event");
    must(cudaMemcpyAsync(to.data(), from.data(), static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, nullptr),
         "copy");
    must(cudaEventRecord(end, nullptr), "event");
    must(cudaEventSynchronize(end), "copy");
    must(cudaEventElapsedTime(&milliseconds, start, end), "time");
    times.push_back(milliseconds);
  }
  std::sort(times.begin(), times.end());
  return 2e-6 * static_cast<double>(bytes) / times[times.size() / 2];
}

void run(const char* part) {
  cudaDeviceProp device;
  must(cudaGetDeviceProperties(&device, 0), "device");
  const double copy = copy_gb_per_s();
  std::printf("%s: a copy moves %.0f GB/s (read and written)\n", device.name, copy);
  std::printf("small, in a chain of a captured graph: microseconds of one\n");
  for (const Row& row : small_rows()) {
    if (std::strstr(row.op, part) == nullptr) continue;
    const Prepared kernel(row);
    const auto t = time_graph([&](cudaStream_t stream) { kernel(stream); }, 64, 4);
    std::printf("  %-28s %-44s %7.2f us (%.2f to %.2f)\n", row.op, text_of(row).c_str(), t.median, t.low, t.high);
  }
  for (const DType t : {f32, bf16}) {
    std::printf("large, %s: GB/s, also as a percentage of a copy's\n", std::string(to_string(t)).c_str());
    for (const Row& row : large_rows(t)) {
      if (std::strstr(row.op, part) == nullptr) continue;
      const Prepared kernel(row);
      const auto time = time_graph([&](cudaStream_t stream) { kernel(stream); }, 2, 1, 9);
      const double rate = 1e-3 * bytes_of(row) / time.median;
      std::printf("  %-28s %-60.60s %8.1f us (%.1f to %.1f) %6.0f GB/s %5.1f%%\n", row.op, text_of(row).c_str(),
                  time.median, time.low, time.high, rate, 100 * rate / copy);
    }
  }
}

}  // namespace
}  // namespace trainctl

int main(int argc, char** argv) {
  try {
    trainctl::run(argc > 1 ? argv[1] : "");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
