// Kernels launched as one, on networks of random widths: each result against float64, computed from the GPU's own
// earlier results.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <random>

#include "engine/ops/small_step/kernel_group_cuda.h"
#include "tests/op_cases/cuda/cuda_device.h"
#include "tests/op_cases/cuda/device_tensors.h"
#include "tests/op_cases/cuda/small_step_on.h"
#include "tests/skip.h"

namespace trainctl {
namespace {

struct Network {
  int rows = 0;
  std::vector<int> widths;  ///< width of the data, then of each layer's result
  std::string loss;
  bool aligned = true;
};

/// A network's tensors and their places.
struct Built {
  explicit Built(const Network& n) : tensors(n.aligned), network(n) {
    const auto rows = int64_t{n.rows};
    values.push_back(tensors.add({rows, n.widths[0]}, 1.0f));
    for (size_t l = 1; l < n.widths.size(); ++l) {
      const auto in = int64_t{n.widths[l - 1]}, out = int64_t{n.widths[l]};
      weights.push_back(tensors.add({out, in}, 2.0f / std::sqrt(static_cast<float>(in))));
      biases.push_back(tensors.add({out}, 0.1f));
      values.push_back(tensors.add({rows, out}, 0.0f));
      grads.push_back(tensors.add({rows, out}, 0.0f));
    }
    const bool classes = n.loss == "softmax_cross_entropy";
    label = tensors.add(classes ? Shape{rows} : Shape{rows, n.widths.back()}, 1.0f, classes ? DType::i32 : DType::f32);
    if (classes) tensors.set_classes(label, n.widths.back());
    loss = tensors.add({1}, 0.0f);
    scalars = tensors.add({8}, 0.0f);
    tensors.upload();
    StepScalars rate;
    rate.learning_rate = 0.25f;
    must(cudaMemcpy(tensors.arg(scalars).data, &rate, sizeof(rate), cudaMemcpyHostToDevice));
  }

  CudaKernelCall call(std::vector<TensorArg> in, std::vector<TensorArg> out, Attrs attrs) {
    CudaKernelCall c;
    c.in = std::move(in);
    c.out = std::move(out);
    c.attrs = std::move(attrs);
    c.scalars = tensors.arg(scalars).as<StepScalars>();
    c.scratch = &scratch;
    return c;
  }
  std::vector<GroupedKernel> chain(bool adds_to_loss = false) {
    std::vector<GroupedKernel> kernels;
    const size_t layers = weights.size();
    for (size_t l = 0; l < layers; ++l) {
      Attrs attrs{{"transpose_b", true}};
      set_epilogue(attrs, {.bias = true, .activation = l + 1 < layers ? Activation::relu : Activation::none});
      kernels.push_back(
          {&get_kernel("matmul"), call({tensors.arg(values[l]), tensors.arg(weights[l]), tensors.arg(biases[l])},
                                       {tensors.arg(values[l + 1])}, attrs)});
    }
    loss_op = network.loss + "_with_grad";
    kernels.push_back({&get_kernel(loss_op),
                       call({tensors.arg(values[layers]), tensors.arg(label)},
                            {tensors.arg(loss, adds_to_loss), tensors.arg(grads[layers - 1])}, {{"scale", kScale}})});
    for (size_t l = layers - 1; l > 0; --l) {
      Attrs attrs;
      set_epilogue(attrs, {.slope = Activation::relu});
      kernels.push_back(
          {&get_kernel("matmul"), call({tensors.arg(grads[l]), tensors.arg(weights[l]), tensors.arg(values[l])},
                                       {tensors.arg(grads[l - 1])}, attrs)});
    }
    return kernels;
  }
  std::vector<GroupedKernel> updates() {
    std::vector<GroupedKernel> kernels;
    Attrs attrs;
    set_epilogue(attrs, {.bias_grad = true, .descend = true});
    for (size_t l = weights.size(); l-- > 0;) {
      kernels.push_back({&get_kernel("matmul_weight_grad"),
                         call({tensors.arg(values[l]), tensors.arg(grads[l])},
                              {tensors.arg(weights[l], true), tensors.arg(biases[l], true)}, attrs)});
    }
    return kernels;
  }

  void take_scratch(std::optional<CudaKernel> kernel_groups_kernel) {
    prepared = std::move(kernel_groups_kernel);
    if (memory == nullptr) must(cudaMalloc(&memory, static_cast<size_t>(std::max<int64_t>(scratch.bytes(), 16))));
    scratch.set_memory(memory);
  }
  ~Built() { cudaFree(memory); }
  Built(const Built&) = delete;
  Built& operator=(const Built&) = delete;

  void* memory = nullptr;
  std::optional<CudaKernel> prepared;
  static constexpr double kScale = 0.125;
  Tensors tensors;
  Network network;
  CudaScratch scratch;
  std::vector<int> values, weights, biases, grads;
  int label = 0, loss = 0, scalars = 0;
  std::string loss_op;
};

double loss_of(const Built& kernel_groups_b, const std::vector<float>& m, Worst& grads) {
  const int n = kernel_groups_b.network.widths.back(), layers = static_cast<int>(kernel_groups_b.weights.size());
  const float* x = &m[static_cast<size_t>(kernel_groups_b.tensors.first(kernel_groups_b.values[static_cast<size_t>(layers)]))];
  const float* label = &m[static_cast<size_t>(kernel_groups_b.tensors.first(kernel_groups_b.label))];
  const float* dx = &m[static_cast<size_t>(kernel_groups_b.tensors.first(kernel_groups_b.grads[static_cast<size_t>(layers) - 1]))];
  double total = 0;
  for (int row = 0; row < kernel_groups_b.network.rows; ++row) {
    double top = -INFINITY, sum = 0;
    for (int c = 0; c < n; ++c) top = std::max<double>(top, x[row * n + c]);
    for (int c = 0; c < n; ++c) sum += std::exp(x[row * n + c] - top);
    int32_t own = 0;
    std::memcpy(&own, label + row, sizeof(own));
    if (kernel_groups_b.network.loss == "softmax_cross_entropy") total += std::log(sum) + top - x[row * n + own];
    for (int c = 0; c < n; ++c) {
      const int i = row * n + c;
      const double off = static_cast<double>(x[i]) - label[i];
      double slope = std::exp(x[i] - top) / sum - (c == own ? 1.0 : 0.0);
      if (kernel_groups_b.network.loss == "mae") slope = off > 0 ? 1 : off < 0 ? -1 : 0, total += std::fabs(off);
      if (kernel_groups_b.network.loss == "mse") slope = 2 * off, total += off * off;
      grads.compare(dx[i], slope * Built::kScale);
    }
  }
  return total * Built::kScale;
}

void check_chain(const Built& kernel_groups_b, const std::vector<float>& m) {
  const auto at = [&](int tensor) { return &m[static_cast<size_t>(kernel_groups_b.tensors.first(tensor))]; };
  const int rows = kernel_groups_b.network.rows;
  for (size_t l = 0; l < kernel_groups_b.weights.size(); ++l) {
    const int k = kernel_groups_b.network.widths[l], n = kernel_groups_b.network.widths[l + 1];
    const float *x = at(kernel_groups_b.values[l]), *w = at(kernel_groups_b.weights[l]), *bias = at(kernel_groups_b.biases[l]), *y = at(kernel_groups_b.values[l + 1]);
    Worst forward, backward;
    for (int r = 0; r < rows; ++r) {
      for (int j = 0; j < n; ++j) {
        double sum = bias[j];
        for (int i = 0; i < k; ++i) sum += static_cast<double>(x[r * k + i]) * w[j * k + i];
        forward.compare(y[r * n + j], l + 1 < kernel_groups_b.weights.size() && sum < 0 ? 0.0 : sum);
      }
    }
    CHECK(forward.relative() < 2e-6);
    if (l == 0) continue;
    const float *dy = at(kernel_groups_b.grads[l]), *dx = at(kernel_groups_b.grads[l - 1]);
    for (int r = 0; r < rows; ++r) {
      for (int i = 0; i < k; ++i) {
        double sum = 0;
        for (int j = 0; j < n; ++j) sum += static_cast<double>(dy[r * n + j]) * w[j * k + i];
        backward.compare(dx[r * k + i], x[r * k + i] > 0 ? sum : 0.0);
      }
    }
    CHECK(backward.relative() < 2e-6);
  }
  Worst loss, grads;
  loss.compare(*at(kernel_groups_b.loss), loss_of(kernel_groups_b, m, grads));
  CHECK(loss.relative() < 2e-6);
  CHECK(grads.relative() < 2e-6);
}

/// A parameter after a step, from the terms of its gradient.
struct Descent {
  explicit Descent(double before) : value(before), terms(std::fabs(before)) {}
  void add(double slope) {
    value -= 0.25 * slope;
    terms += 0.25 * std::fabs(slope);
  }
  void compare(Worst& worst, double got) const { worst.compare(got, value, terms); }

  double value, terms;
};

void check_updates(const Built& kernel_groups_b, const std::vector<float>& m) {
  const auto at = [&](const std::vector<float>& of, int tensor) {
    return &of[static_cast<size_t>(kernel_groups_b.tensors.first(tensor))];
  };
  for (size_t l = 0; l < kernel_groups_b.weights.size(); ++l) {
    const int k = kernel_groups_b.network.widths[l], n = kernel_groups_b.network.widths[l + 1];
    const float *x = at(m, kernel_groups_b.values[l]), *dy = at(m, kernel_groups_b.grads[l]);
    const float *w = at(m, kernel_groups_b.weights[l]), *before = at(kernel_groups_b.tensors.before(), kernel_groups_b.weights[l]);
    Worst weights, biases;
    for (int j = 0; j < n; ++j) {
      Descent bias(at(kernel_groups_b.tensors.before(), kernel_groups_b.biases[l])[j]);
      for (int r = 0; r < kernel_groups_b.network.rows; ++r) bias.add(dy[r * n + j]);
      bias.compare(biases, at(m, kernel_groups_b.biases[l])[j]);
      for (int i = 0; i < k; ++i) {
        Descent weight(before[j * k + i]);
        for (int r = 0; r < kernel_groups_b.network.rows; ++r) weight.add(static_cast<double>(dy[r * n + j]) * x[r * k + i]);
        weight.compare(weights, w[j * k + i]);
      }
    }
    CHECK(weights.relative() < 2e-6);
    CHECK(biases.relative() < 2e-6);
  }
}

/// Whole packs of 16 bytes, few enough rows, and room for the rows of two layers.
bool is_for_a_chain(const Network& n) {
  const bool fits = *std::max_element(n.widths.begin(), n.widths.end()) < 4096;
  const bool packs = std::all_of(n.widths.begin(), n.widths.end() - 1, [](int width) { return width % 4 == 0; });
  return n.aligned && fits && packs && (n.widths.back() <= 32 || n.widths.back() % 4 == 0) && n.rows <= 48;
}

void check_network(const Network& network) {
  CAPTURE(network.rows);
  CAPTURE(network.widths);
  CAPTURE(network.loss);
  CAPTURE(network.aligned);
  Built kernel_groups_b(network);
  const std::vector<GroupedKernel> chain = kernel_groups_b.chain(), updates = kernel_groups_b.updates();
  const std::optional<CudaKernel> forward_and_back = prepare_group(chain), descend = prepare_group(updates);
  REQUIRE(descend.has_value());
  // All clusters of a chain must run at once. Every card can place 4 clusters of 16 multiprocessors together, but not
  // every card 6; and clusters of 8, whose blocks compute more tiles, may lack shared memory.
  if (network.rows <= 32 || !is_for_a_chain(network)) REQUIRE(forward_and_back.has_value() == is_for_a_chain(network));
  std::vector<CudaKernel> alone;
  for (const GroupedKernel& kernel_groups_kernel : chain)
    alone.push_back(find_cuda_kernel(kernel_groups_kernel.kernel->name)->prepare(kernel_groups_kernel.call));
  kernel_groups_b.take_scratch(forward_and_back);
  const auto make_rows = [&] {
    if (forward_and_back) return run(*forward_and_back);
    for (const CudaKernel& kernel_groups_kernel : alone) run(kernel_groups_kernel);
  };
  make_rows();
  const std::vector<float> once = kernel_groups_b.tensors.download();
  check_chain(kernel_groups_b, once);
  make_rows();
  CHECK(std::memcmp(once.data(), kernel_groups_b.tensors.download().data(), once.size() * sizeof(float)) == 0);
  run(*descend);
  check_updates(kernel_groups_b, kernel_groups_b.tensors.download());
}

TEST_CASE(
    "cuda: a chain of layers and the steps of descent behind it, each in one launch where packs fit, follow float64") {
  if (!gpu_is_here()) return;
  const SmallStepOn small_step;
  int major = 0;
  must(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  if (major < 9) {
    skip_test("clusters of blocks need compute capability 9");
    return;
  }
  check_network({32, {784, 512, 512, 1}, "mae"});
  for (const int rows : {1, 31, 41, 48, 49, 256}) check_network({rows, {784, 512, 512, 1}, "mae"});
  check_network({40, {512, 512, 256, 10}, "softmax_cross_entropy"});
  check_network({37, {100, 600, 36, 64, 100}, "softmax_cross_entropy"});
  check_network({26, {36, 1100, 28}, "mse"});
  check_network({12, {352, 320, 96, 3}, "mae"});  // a remainder of tiles along k
  check_network({20, {64, 1024, 4}, "mse"});      // few outputs, but many weights
  check_network({29, {785, 512, 510, 1}, "mae"});
  check_network({1, {1, 1, 1}, "mse", false});
  check_network({200, {65, 129, 33, 100}, "softmax_cross_entropy"});
  check_network({7, {8, 36, 64, 132, 10}, "softmax_cross_entropy"});
  for (const int outputs : {1, 2, 3, 17}) check_network({outputs + 24, {784, 512, 512, outputs}, "mse"});
  check_network({9, {2048, 1024, 36, 4}, "mae"});  // more tiles than blocks
  check_network({48, {64, 600, 2000, 128}, "softmax_cross_entropy"});
  check_network({3, {600, 4, 8, 1100, 28}, "mse"});  // a few columns of many, and many of a few
  check_network({5, {8192, 64, 4}, "mae"});          // too wide for shared memory
  check_network({3, {64, 6000, 64, 4}, "mae"});
  std::mt19937 random(std::random_device{}());
  const auto any = [&](std::initializer_list<int> of) { return *(of.begin() + random() % of.size()); };
  for (int i = 0; i < 60; ++i) {
    const bool packs = i % 3 > 0;
    Network n{any({1, 3, 8, 17, 32, 48, 61}), {}, "", packs || random() % 2 == 0};
    for (int layers = any({2, 3, 4}); layers >= 0; --layers)
      n.widths.push_back(packs ? any({4, 8, 16, 28, 36, 64, 100, 128, 300, 520})
                               : any({1, 2, 7, 31, 64, 97, 300, 521}));
    n.widths.back() = any({1, 2, 7, 10, 31, 33, 64, 128});
    n.loss = std::array<std::string, 3>{"mae", "mse", "softmax_cross_entropy"}[random() % 3];
    if (n.loss == "softmax_cross_entropy") n.widths.back() = std::max(n.widths.back(), 2);
    check_network(n);
  }
}

TEST_CASE("cuda: forward with the loss, and backward alone, are chains too") {
  if (!gpu_is_here()) return;
  const SmallStepOn small_step;
  for (const Network& n :
       {Network{32, {784, 512, 512, 1}, "mae"}, Network{11, {16, 300, 64, 520, 17}, "mse"},
        Network{48, {64, 128, 36, 33}, "softmax_cross_entropy"},
        Network{200, {784, 300, 300, 12}, "softmax_cross_entropy"}, Network{3, {8, 4, 4, 3}, "mse"}}) {
    CAPTURE(n.widths);
    Built kernel_groups_b(n);
    const std::vector<GroupedKernel> chain = kernel_groups_b.chain();
    const size_t layers = n.widths.size() - 1;
    std::array<std::optional<CudaKernel>, 2> halves = {prepare_group(std::span(chain).first(layers + 1)),
                                                       prepare_group(std::span(chain).subspan(layers + 1))};
    if (!halves[1]) return skip_test("this GPU has no clusters of blocks");
    std::vector<CudaKernel> alone;
    for (size_t i = 0; i <= layers; ++i)
      alone.push_back(find_cuda_kernel(chain[i].kernel->name)->prepare(chain[i].call));
    if (n.rows <= 32) CHECK(halves[0].has_value() == is_for_a_chain(n));
    kernel_groups_b.take_scratch(halves[0]);
    if (halves[0]) alone = {*halves[0]};
    for (const CudaKernel& kernel_groups_kernel : alone) run(kernel_groups_kernel);
    run(*halves[1]);
    check_chain(kernel_groups_b, kernel_groups_b.tensors.download());
  }
}

TEST_CASE("cuda: a chain adds its loss to those of the micro-batches before") {
  if (!gpu_is_here()) return;
  const SmallStepOn small_step;
  Built kernel_groups_b({20, {64, 100, 4}, "mse"});
  const std::vector<GroupedKernel> first = kernel_groups_b.chain(), second = kernel_groups_b.chain(true);
  const std::optional<CudaKernel> makes = prepare_group(first), adds = prepare_group(second);
  if (!makes || !adds) return skip_test("this GPU has no clusters of blocks");
  kernel_groups_b.take_scratch(makes);
  const auto loss = [&] { return kernel_groups_b.tensors.download()[static_cast<size_t>(kernel_groups_b.tensors.first(kernel_groups_b.loss))]; };
  run(*makes);
  const float once = loss();
  for (int i = 0; i < 3; ++i) run(*adds);
  CHECK(std::fabs(loss() - 4 * once) < 1e-6f * std::fabs(loss()));
}

TEST_CASE("cuda: chains of different sizes are prepared before either runs") {
  if (!gpu_is_here()) return;
  const SmallStepOn small_step;
  Built large({32, {784, 512, 512, 1}, "mae"}), small({8, {16, 64, 8}, "mse"});
  for (Built* kernel_groups_b : {&large, &small}) kernel_groups_b->take_scratch(prepare_group(kernel_groups_b->chain()));
  for (Built* kernel_groups_b : {&large, &small}) {
    if (!kernel_groups_b->prepared) return skip_test("this GPU has no clusters of blocks");
    run(*kernel_groups_b->prepared);
    check_chain(*kernel_groups_b, kernel_groups_b->tensors.download());
  }
}

TEST_CASE("cuda: a NaN that the GPU made goes through to the weights") {
  if (!gpu_is_here()) return;
  const SmallStepOn small_step;
  Built kernel_groups_b({8, {16, 16, 16}, "mse"});
  const std::vector<GroupedKernel> chain = kernel_groups_b.chain(), updates = kernel_groups_b.updates();
  const uint32_t kernel_groups_nan = 0x7fffffff;
  must(cudaMemcpy(kernel_groups_b.tensors.arg(kernel_groups_b.grads[1]).as<float>() + 3, &kernel_groups_nan, sizeof(kernel_groups_nan), cudaMemcpyHostToDevice));
  const std::optional<CudaKernel> descend = prepare_group(updates);
  REQUIRE(descend.has_value());
  run(*descend);
  const std::vector<float> after = kernel_groups_b.tensors.download();
  for (int i = 0; i < 16; ++i) {
    CAPTURE(i);
    CHECK(std::isnan(after[static_cast<size_t>(kernel_groups_b.tensors.first(kernel_groups_b.weights[1]) + 3 * 16 + i)]));
  }
}

TEST_CASE("cuda: kernels that depend on each other's rows otherwise, or are no group, are not launched as one") {
  if (!gpu_is_here()) return;
  const SmallStepOn small_step;
  Built kernel_groups_b({16, {16, 16, 16}, "mse"});
  std::vector<GroupedKernel> chain = kernel_groups_b.chain();
  CHECK_FALSE(prepare_group(std::span(chain).first(1)).has_value());
  std::vector<GroupedKernel> weights_from_chain = chain;  // a layer whose weights another layer writes
  weights_from_chain[1].call.in[1] = weights_from_chain[0].call.out[0];
  CHECK_FALSE(prepare_group(weights_from_chain).has_value());
  std::vector<GroupedKernel> over_labels = chain;  // a result where the labels are still needed
  over_labels[3].call.out[0].data = over_labels[2].call.in[1].data;
  CHECK_FALSE(prepare_group(over_labels).has_value());
}

}  // namespace
}  // namespace trainctl
