// trainctl bench: every kernel can be timed, its figures follow from its times, and impossible requests are errors.
#include <doctest/doctest.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/measure/op_bench.h"
#include "engine/base/error.h"
#include "engine/ops/op_def.h"
#include "engine/runtime/cuda/devices.h"
#include "engine/runtime/measure/collective_data.h"
#include "tests/cli/command.h"
#include "tests/gpu/gpus.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;

namespace {

constexpr SampleOptions kOneRun{.samples = 1, .sample_seconds = 0};
constexpr int64_t kCache = 1 << 20;

/// The CPU's timer, with a small cache.
class SmallCache : public KernelTimer {
 public:
  std::string device() const override { return cpu_->device(); }
  int64_t cache_bytes() const override { return kCache; }
  bool has_kernel(std::string_view name) const override { return cpu_->has_kernel(name); }
  std::byte* allocate(int64_t bytes) override { return cpu_->allocate(bytes); }
  void clear() override { cpu_->clear(); }
  void write(void* to, const void* from, int64_t bytes) override { cpu_->write(to, from, bytes); }
  std::vector<double> time(std::string_view kernel, std::span<const KernelCall> calls,
                           const SampleOptions& options) override {
    return cpu_->time(kernel, calls, options);
  }
  double memory_rate(int64_t bytes, const SampleOptions& options) override { return cpu_->memory_rate(bytes, options); }

 private:
  std::unique_ptr<KernelTimer> cpu_ = make_cpu_kernel_timer(1);
};

/// A device on which a run takes one millisecond, or three from 512 x 512 results on, and memory moves 10 GB/s.
class Millisecond : public SmallCache {
 public:
  std::vector<double> time(std::string_view, std::span<const KernelCall> calls, const SampleOptions&) override {
    sets = calls.size();
    const double times = calls[0].out[0].size() >= 512 * 512 ? 3 : 1;
    return {1e-3 * times, 0.9e-3 * times, 2e-3 * times};
  }
  double memory_rate(int64_t, const SampleOptions&) override { return 1e10; }
  size_t sets = 0;
};

std::string bench_error(const std::vector<std::string>& words, int exit_code) {
  const Scratch scratch;
  std::vector<std::string> all = {"bench"};
  all.insert(all.end(), words.begin(), words.end());
  const CommandResult result = trainctl_command(scratch.path(), all);
  CHECK(result.exit_code == exit_code);
  CHECK(result.out.empty());
  return result.err;
}

}  // namespace

TEST_CASE("every kernel has an example whose work is known") {
  for (const KernelDef* kernel : all_kernels()) {
    CAPTURE(std::string(kernel->name));
    REQUIRE((kernel->example != nullptr));
    const KernelExample example = kernel->example();
    CHECK_FALSE(std::string(example.what).empty());
    CHECK((find_op(kernel->name) != nullptr) == (example.outputs == nullptr));
    const OpRequest request = make_op_request(kernel->name, "", "", {});
    CHECK(kernel_cost(*kernel, request.inputs, request.outputs, request.attrs).bytes > 0);
  }
}

TEST_CASE("every CPU kernel runs its example") {
  SmallCache timer;
  OpBench bench(timer, kOneRun);
  for (const KernelDef* kernel : all_kernels()) {
    CAPTURE(std::string(kernel->name));
    const OpResult result = bench.run(make_op_request(kernel->name, "", "", {}));
    CHECK(result.seconds.median > 0);
    CHECK(result.of_limit() >= 0);
  }
}

TEST_CASE("a product's figures follow from its shapes and its time") {
  const Scratch scratch;
  const CommandResult result = trainctl_command(
      scratch.path(),
      {"bench", "op", "matmul", "--shape", "32x96,64x96", "--attrs", "transpose_b=true", "--repeat", "3", "--json"});
  REQUIRE(result.exit_code == kExitDone);
  const nlohmann::json report = nlohmann::json::parse(result.out, nullptr, false);
  REQUIRE(report.is_object());
  const nlohmann::json& row = report["results"][0];
  const double seconds = row["seconds"]["median"], flops = row["flops"], bytes = row["bytes"];
  CHECK(flops == 2.0 * 32 * 96 * 64);
  CHECK(bytes == 4.0 * (32 * 96 + 64 * 96 + 32 * 64));
  CHECK(row["flops_per_second"] == doctest::Approx(flops / seconds));
  CHECK(row["bytes_per_second"] == doctest::Approx(bytes / seconds));
  CHECK(row["limits"]["flops_per_second"].get<double>() > 0);
  CHECK(row["seconds"]["p10"] <= row["seconds"]["median"]);
  CHECK(row["seconds"]["median"] <= row["seconds"]["p90"]);
}

TEST_CASE("a memory-bound kernel is timed on more memory than the caches hold, and its limit is the memory's") {
  Millisecond timer;
  OpBench bench(timer, kOneRun);
  const OpResult relu = bench.run(make_op_request("relu", "1000x125", "", {}));
  CHECK(relu.work.bytes == 1e6);
  CHECK(timer.sets == 3);  // twice the cache, 1 MB each
  CHECK(relu.seconds.median == 1e-3);
  CHECK(relu.of_limit() == doctest::Approx(0.1));
  const OpResult tiny = bench.run(make_op_request("relu", "8", "", {}));
  CHECK(timer.sets == 256);  // these fit in the cache
  CHECK(tiny.memory_bytes == 0);
}

TEST_CASE("a product-bound kernel is timed on one set of operands, and its limit is the best product's rate") {
  Millisecond timer;
  OpBench bench(timer, kOneRun);
  CHECK(bench.peak_flops({}) == doctest::Approx(2.0 * 512 * 512 * 512 / 2.7e-3));
  const OpResult product = bench.run(make_op_request("matmul", "512x512,512x512", "", {}));
  CHECK(timer.sets == 1);
  CHECK(product.of_limit() == doctest::Approx(0.9));
}

TEST_CASE("an error in shapes, attributes or names states the rule") {
  CHECK(contains(bench_error({"op", "matmul", "--shape", "32x784,512x784"}, kExitSpec),
                 "contracted dims are 784 and 512"));
  CHECK(contains(bench_error({"op", "matmul", "--shape", "32xq"}, kExitSpec), "'32xq' is not a shape"));
  CHECK(contains(bench_error({"op", "matmul", "--shape", "0x4,4x4"}, kExitSpec), "is not a shape"));
  CHECK(contains(bench_error({"op", "matmull"}, kExitSpec), "did you mean 'matmul'?"));
  CHECK(contains(bench_error({"op", "softmax", "--attrs", "dims=1"}, kExitSpec), "did you mean 'dim'?"));
  CHECK(contains(bench_error({"op", "softmax", "--attrs", "dim=x"}, kExitSpec), "'x' is not a value for dim"));
  CHECK(contains(bench_error({"op", "softmax", "--attrs", "dim=7"}, kExitSpec), "there is no dim 7"));
  CHECK(contains(bench_error({"op", "matmul", "--attrs", "bias=true"}, kExitSpec), "takes 3 inputs"));
  CHECK(contains(bench_error({"op", "gelu", "--attrs", "approximate=some"}, kExitSpec), "one of none, tanh"));
  CHECK(contains(bench_error({"op", "elementwise", "--attrs", "expression=x0 +"}, kExitSpec), "is not an expression"));
  CHECK(contains(bench_error({"op", "layer_norm_grad", "--shape", "8x4,8x4,8,4"}, kExitSpec), "expected"));
  CHECK(contains(bench_error({"op", "relu", "gelu", "--shape", "8"}, kExitSpec), "several are given"));
  CHECK(contains(bench_error({"op", "relu", "--dtype", "bf16"}, kExitSpec), "CPU kernels support only f32"));
  CHECK(contains(bench_error({"op", "relu", "--dtype", "f16"}, kExitSpec), "f32, bf16 or tf32"));
  CHECK(contains(bench_error({"collective", "all_reduc"}, kExitSpec), "did you mean 'all_reduce'?"));
  CHECK(contains(bench_error({"collective", "all", "--bytes", "1T"}, kExitSpec), "'1T' is not a size"));
  CHECK(contains(bench_error({"collective", "all", "--ranks", "0"}, kExitSpec), "--ranks"));
  CHECK(contains(bench_error({"collective", "all", "--ranks", "64", "--bytes", "16G"}, kExitEnv),
                 "64 ranks need 2.0 TiB"));
}

TEST_CASE("a missing GPU is an error of the machine") {
  if (num_gpus() > 0) return skip_test("this machine has GPUs");
  CHECK(contains(bench_error({"op", "relu", "--device", "cuda"}, kExitEnv), find_cuda_devices().why_none));
  CHECK(contains(bench_error({"collective", "all_reduce", "--device", "cuda"}, kExitEnv), "--device cpu"));
}

TEST_CASE("sizes are powers of 1024") {
  CHECK(parse_sizes("1K, 64KiB,1M,2G,100") == std::vector<int64_t>{1024, 65536, 1 << 20, int64_t{2} << 30, 100});
  CHECK(parse_sizes("3MB") == std::vector<int64_t>{3 << 20});
}

TEST_CASE("collectives between processes are correct, and their bus bandwidth is defined as in nccl-tests") {
  const Scratch scratch;
  const CommandResult result = trainctl_command(
      scratch.path(), {"bench", "collective", "all", "--ranks", "3", "--bytes", "1K,100K", "--repeat", "3", "--json"});
  REQUIRE(result.exit_code == kExitDone);
  const nlohmann::json report = nlohmann::json::parse(result.out, nullptr, false);
  REQUIRE(report["results"].size() == 10);
  for (const nlohmann::json& row : report["results"]) {
    const std::string kind = row["collective"];
    CAPTURE(kind);
    const double factor = kind == "all_reduce" ? 4.0 / 3 : kind == "broadcast" ? 1.0 : 2.0 / 3;
    CHECK(row["bytes"].get<int64_t>() % 12 == 0);
    CHECK(row["wrong_elements"] == 0);
    CHECK(row["bytes_per_second"] ==
          doctest::Approx(row["bytes"].get<double>() / row["seconds"]["median"].get<double>()));
    CHECK(row["bus_bytes_per_second"] == doctest::Approx(factor * row["bytes_per_second"].get<double>()));
    CHECK(row["limit_bytes_per_second"].get<double>() > 0);
  }
}

TEST_CASE("collectives between GPUs are correct, and the copy engines perform large ones") {
  if (!have_gpus(2)) return;
  const Scratch scratch;
  const CommandResult result =
      trainctl_command(scratch.path(), {"bench", "collective", "all", "--ranks", "2", "--bytes", "1K,4M,16M,33000008",
                                        "--repeat", "3", "--device", "cuda", "--json"});
  CHECK(result.err.empty());
  REQUIRE(result.exit_code == kExitDone);
  const nlohmann::json results = nlohmann::json::parse(result.out, nullptr, false)["results"];
  REQUIRE(results.size() == 5 * 4);  // collectives, sizes
  for (const nlohmann::json& row : results) {
    CHECK(row["wrong_elements"] == 0);
    CHECK(row["by"] == (row["bytes"] >= 16 << 20 ? "copy engines" : "NCCL"));
  }
}

TEST_CASE("a wrong element of a collective is counted") {
  for (const Collective kind : {Collective::all_reduce, Collective::all_gather, Collective::reduce_scatter,
                                Collective::all_to_all, Collective::broadcast}) {
    CAPTURE(to_string(kind));
    const CollectiveSizes sizes = collective_sizes(kind, 4 * 3 * 5, 3);
    CHECK(count_wrong(kind, std::vector<float>(static_cast<size_t>(sizes.out), -1.0f), 1, 3) == sizes.out);
  }
  std::vector<float> sum = collective_input(15, 0);
  for (float& x : sum) x = 3 * x + 3;
  CHECK(count_wrong(Collective::all_reduce, sum, 1, 3) == 0);
  sum[4] += 1;
  CHECK(count_wrong(Collective::all_reduce, sum, 1, 3) == 1);
}
