// The end of a network as one launch: each result against float64, computed from the GPU's own earlier results.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

#include "engine/ops/small_step/groups_cuda.h"
#include "engine/ops/small_step/kernel_group_cuda.h"
#include "tests/op_cases/cuda/cuda_device.h"
#include "tests/op_cases/cuda/device_tensors.h"
#include "tests/op_cases/cuda/small_step_on.h"

namespace trainctl {
namespace {

using cuda::prepare_head;

struct HeadCase {
  int rows = 0, k = 0, n = 0;
  std::string loss = "mse";
  Activation slope = Activation::none;  ///< none: dx alone
  bool bias = true, backward = true;
  bool slope_at_x = false;  ///< taken from x, as if x were relu's result
  bool adds_to_loss = false;
  DType type = DType::f32;
  bool aligned = true;
};

struct BuiltHead {
  explicit BuiltHead(const HeadCase& c) : of(c), tensors(c.aligned) {
    const int64_t rows = c.rows, k = c.k, n = c.n;
    const bool classes = c.loss == "softmax_cross_entropy";
    x = tensors.add({rows, k}, 1.0f, c.type);
    w = tensors.add({n, k}, 2.0f / std::sqrt(static_cast<float>(k)), c.type);
    bias = tensors.add({n}, 0.5f, c.type);
    y = tensors.add({rows, n}, 0.0f, c.type);
    label = tensors.add(classes ? Shape{rows} : Shape{rows, n}, 1.0f, classes ? DType::i32 : DType::f32);
    if (classes) tensors.set_classes(label, c.n);
    loss = tensors.add({1}, c.adds_to_loss ? 3.0f : 0.0f);
    dy = tensors.add({rows, n}, 0.0f, c.type);
    slope_at = c.slope_at_x ? x : tensors.add({rows, k}, 3.0f, c.type);
    dx = tensors.add({rows, k}, 0.0f, c.type);
    tensors.upload();
    loss_op = c.loss + "_with_grad";
  }
  BuiltHead(const BuiltHead&) = delete;
  BuiltHead& operator=(const BuiltHead&) = delete;
  ~BuiltHead() { cudaFree(memory); }

  CudaKernelCall call(std::vector<TensorArg> in, std::vector<TensorArg> out, Attrs attrs) {
    CudaKernelCall c;
    c.in = std::move(in);
    c.out = std::move(out);
    c.attrs = std::move(attrs);
    c.scratch = &scratch;
    return c;
  }
  std::vector<GroupedKernel> kernels() {
    std::vector<GroupedKernel> all;
    std::vector<TensorArg> in = {tensors.arg(x), tensors.arg(w)};
    Attrs attrs{{"transpose_b", true}};
    if (of.bias) in.push_back(tensors.arg(bias));
    set_epilogue(attrs, {.bias = of.bias});
    all.push_back({&get_kernel("matmul"), call(in, {tensors.arg(y)}, attrs)});
    all.push_back(
        {&get_kernel(loss_op), call({tensors.arg(y), tensors.arg(label)},
                                    {tensors.arg(loss, of.adds_to_loss), tensors.arg(dy)}, {{"scale", kScale}})});
    if (!of.backward) return all;
    in = {tensors.arg(dy), tensors.arg(w)};
    attrs = {};
    if (of.slope != Activation::none) in.push_back(tensors.arg(slope_at));
    set_epilogue(attrs, {.slope = of.slope});
    all.push_back({&get_kernel("matmul"), call(in, {tensors.arg(dx)}, attrs)});
    return all;
  }
  /// Nothing if this is not one launch.
  std::optional<CudaKernel> prepare() {
    std::optional<CudaKernel> kernel = prepare_head(kernels());
    if (memory == nullptr) must(cudaMalloc(&memory, static_cast<size_t>(std::max<int64_t>(scratch.bytes(), 16))));
    scratch.set_memory(memory);
    return kernel;
  }

  static constexpr double kScale = 0.125;
  HeadCase of;
  Tensors tensors;
  CudaScratch scratch;
  void* memory = nullptr;
  int x = 0, w = 0, bias = 0, y = 0, label = 0, loss = 0, dy = 0, slope_at = 0, dx = 0;
  std::string loss_op;
};

double slope_of(Activation activation, double at) {
  if (activation == Activation::none) return 1;
  if (activation == Activation::relu) return at > 0 ? 1 : 0;
  constexpr double kPi = 3.14159265358979323846;
  if (activation == Activation::gelu)
    return 0.5 * (1 + std::erf(at / std::sqrt(2.0))) + at * std::exp(-at * at / 2) / std::sqrt(2 * kPi);
  const double root = std::sqrt(2 / kPi), t = std::tanh(root * (at + 0.044715 * at * at * at));
  return 0.5 * (1 + t) + 0.5 * at * (1 - t * t) * root * (1 + 3 * 0.044715 * at * at);
}

/// The loss, and its gradient, against the values that the GPU used.
double check_loss(const BuiltHead& b, const std::vector<float>& m, Worst& grads) {
  const std::vector<float> y = b.tensors.values(b.y, m), dy = b.tensors.values(b.dy, m);
  const float* const labels = &m[static_cast<size_t>(b.tensors.first(b.label))];
  const int n = b.of.n;
  double total = 0;
  for (int row = 0; row < b.of.rows; ++row) {
    const float* const of_row = &y[static_cast<size_t>(row * n)];
    const double top = *std::max_element(of_row, of_row + n);
    double sum = 0;
    for (int c = 0; c < n; ++c) sum += std::exp(of_row[c] - top);
    int32_t own = 0;
    std::memcpy(&own, labels + row, sizeof(own));
    if (b.of.loss == "softmax_cross_entropy") total += std::log(sum) + top - of_row[own];
    for (int c = 0; c < n; ++c) {
      double slope = std::exp(of_row[c] - top) / sum - (c == own ? 1.0 : 0.0);
      if (b.of.loss != "softmax_cross_entropy") {
        const double off = static_cast<double>(of_row[c]) - labels[row * n + c];
        total += b.of.loss == "mae" ? std::fabs(off) : off * off;
        slope = b.of.loss == "mse" ? 2 * off : off > 0 ? 1 : off < 0 ? -1 : 0;
      }
      grads.compare(dy[static_cast<size_t>(row * n + c)], slope * BuiltHead::kScale);
    }
  }
  return total * BuiltHead::kScale;
}

void check_results(const BuiltHead& b, const std::vector<float>& m) {
  const auto of = [&](int tensor) { return b.tensors.values(tensor, m); };
  const std::vector<float> x = of(b.x), w = of(b.w), bias = of(b.bias), y = of(b.y), dy = of(b.dy), dx = of(b.dx);
  const std::vector<float> slope_at = of(b.slope_at);
  const auto n = static_cast<size_t>(b.of.n), k = static_cast<size_t>(b.of.k), rows = static_cast<size_t>(b.of.rows);
  Worst forward, grads, loss, backward;
  for (size_t r = 0; r < rows; ++r) {
    for (size_t j = 0; j < n; ++j) {
      double sum = b.of.bias ? bias[j] : 0.0;
      for (size_t i = 0; i < k; ++i) sum += static_cast<double>(x[r * k + i]) * w[j * k + i];
      forward.compare(y[r * n + j], sum);
    }
    for (size_t i = 0; i < k && b.of.backward; ++i) {
      double sum = 0;
      for (size_t j = 0; j < n; ++j) sum += static_cast<double>(dy[r * n + j]) * w[j * k + i];
      backward.compare(dx[r * k + i], sum * slope_of(b.of.slope, slope_at[r * k + i]));
    }
  }
  const double before = b.of.adds_to_loss ? b.tensors.values(b.loss, b.tensors.before())[0] : 0.0;
  loss.compare(of(b.loss)[0], before + check_loss(b, m, grads));
  const double most = b.of.type == DType::bf16 ? 8e-3 : 2e-6;
  CHECK(forward.relative() < most);
  CHECK(grads.relative() < most);
  CHECK(backward.relative() < most);
  CHECK(loss.relative() < 2e-6);
}

/// Everything but the results is unchanged.
void check_the_rest(const BuiltHead& b, std::vector<float> m) {
  const std::vector<float>& before = b.tensors.before();
  std::vector<int> results = {b.y, b.dy, b.loss};
  if (b.of.backward) results.push_back(b.dx);
  for (int tensor : results) {
    const bool halves = tensor != b.loss && b.of.type == DType::bf16;
    const auto first = static_cast<size_t>(b.tensors.first(tensor));
    const size_t bytes = static_cast<size_t>(b.tensors.size(tensor)) * (halves ? 2 : 4);
    std::memcpy(&m[first], &before[first], bytes);
  }
  CHECK(std::memcmp(m.data(), before.data(), m.size() * sizeof(float)) == 0);
}

void check_head(const HeadCase& c) {
  CAPTURE(c.rows);
  CAPTURE(c.k);
  CAPTURE(c.n);
  CAPTURE(c.loss);
  CAPTURE(static_cast<int>(c.slope));
  CAPTURE(c.bias);
  CAPTURE(c.backward);
  CAPTURE(c.slope_at_x);
  CAPTURE(c.adds_to_loss);
  CAPTURE((c.type == DType::bf16));
  BuiltHead b(c);
  const std::optional<CudaKernel> kernel = b.prepare();
  REQUIRE(kernel.has_value());
  run(*kernel);
  const std::vector<float> once = b.tensors.download();
  check_results(b, once);
  check_the_rest(b, once);
  b.tensors.upload();
  run(*kernel);
  CHECK(std::memcmp(once.data(), b.tensors.download().data(), once.size() * sizeof(float)) == 0);
}

TEST_CASE("cuda: the last product, its loss and the product backward, in one launch, follow float64") {
  if (!gpu_is_here()) return;
  check_head({256, 512, 1, "mae", Activation::relu, true, true, true});
  check_head({256, 512, 10, "softmax_cross_entropy", Activation::relu, true, true, true});
  const std::vector<std::string> losses = {"mae", "mse", "softmax_cross_entropy"};
  const std::vector<Activation> slopes = {Activation::relu, Activation::gelu, Activation::gelu_tanh, Activation::none};
  size_t turn = 0;
  for (const int n : {1, 2, 3, 5, 7, 8, 10, 12, 16}) {
    for (const int rows : {1, 64, 255, 1000}) {
      for (const int k : {4, 100, 512, 1000}) {
        HeadCase c{rows, k, n, losses[turn % 3], slopes[turn / 3 % 4]};
        c.bias = turn % 5 > 0;
        c.slope_at_x = turn % 2 > 0;
        c.adds_to_loss = turn % 7 == 0;
        c.backward = turn % 11 > 0;
        check_head(c);
        ++turn;
      }
    }
  }
}

TEST_CASE("cuda: heads of many rows, and of long ones, follow float64") {
  if (!gpu_is_here()) return;
  check_head({4096, 36, 10, "softmax_cross_entropy", Activation::relu});
  check_head({5001, 512, 3, "mse", Activation::gelu});
  check_head({20011, 256, 10, "softmax_cross_entropy", Activation::relu, true, true, true});
  check_head({50001, 260, 1, "mae", Activation::relu});
  check_head({3001, 2048, 16, "mse", Activation::gelu_tanh});
  check_head({50, 32768, 1, "mae", Activation::relu});
  check_head({129, 3276, 10, "softmax_cross_entropy", Activation::none});
}

TEST_CASE("cuda: heads in bf16 round what they pass on, at any number of rows") {
  if (!gpu_is_here()) return;
  const std::vector<std::string> losses = {"mae", "mse", "softmax_cross_entropy"};
  const std::vector<Activation> slopes = {Activation::relu, Activation::gelu, Activation::gelu_tanh, Activation::none};
  size_t turn = 0;
  for (const int n : {1, 2, 3, 6, 8, 10, 11, 16}) {
    for (const int rows : {1, 32, 255, 6000}) {
      HeadCase c{rows, rows > 4096 ? 512 : 8 * (turn % 3 == 0 ? 1 : 67), n, losses[turn % 3], slopes[turn / 3 % 4]};
      c.type = DType::bf16;
      c.bias = turn % 5 > 0;
      c.slope_at_x = turn % 2 > 0;
      check_head(c);
      ++turn;
    }
  }
}

TEST_CASE("cuda: heads without whole packs, and groups that are not heads, are not launched as one") {
  if (!gpu_is_here()) return;
  const auto is_launch = [](const HeadCase& c) { return BuiltHead(c).prepare().has_value(); };
  CHECK(is_launch({100, 64, 16}));
  CHECK_FALSE(is_launch({100, 64, 17}));
  CHECK_FALSE(is_launch({100, 66, 10}));
  CHECK_FALSE(is_launch({100, 8192, 16}));  // weights do not fit into L1
  CHECK_FALSE(is_launch({5000, 64, 10}));   // many short rows
  HeadCase shifted{100, 64, 10};
  shifted.aligned = false;
  CHECK_FALSE(is_launch(shifted));

  BuiltHead b({100, 64, 10, "mse", Activation::relu});
  const std::vector<GroupedKernel> right = b.kernels();
  REQUIRE(prepare_head(right).has_value());
  CHECK_FALSE(prepare_head(std::span(right).subspan(1)).has_value());
  std::vector<GroupedKernel> wrong = right;  // other weights
  wrong[2].call.in[1] = b.tensors.arg(b.x);
  wrong[2].call.in[1].shape = {10, 64};
  CHECK_FALSE(prepare_head(wrong).has_value());
  wrong = right;  // weights in the other layout
  wrong[0].call.in[1].shape = {64, 10};
  wrong[0].call.attrs.erase("transpose_b");
  CHECK_FALSE(prepare_head(wrong).has_value());
  wrong = right;  // a slope that the launch itself computes
  wrong[2].call.in[2].data = b.tensors.arg(b.dy).data;
  CHECK_FALSE(prepare_head(wrong).has_value());
}

TEST_CASE("cuda: kernels that cannot be a chain, by their rows, activation or type, are a head") {
  if (!gpu_is_here()) return;
  const SmallStepOn small_step;
  HeadCase bf16{32, 64, 10, "mse", Activation::relu};
  bf16.type = DType::bf16;
  for (const HeadCase& c :
       {HeadCase{257, 64, 10, "mse", Activation::relu}, HeadCase{32, 64, 10, "mse", Activation::gelu}, bf16})
    CHECK(prepare_group(BuiltHead(c).kernels()).has_value());
}

TEST_CASE("cuda: a head takes a weight vector in either layout, and a NaN stays in its row") {
  if (!gpu_is_here()) return;
  BuiltHead b({77, 64, 1, "mse", Activation::relu});
  std::vector<GroupedKernel> kernels = b.kernels();
  kernels[0].call.in[1].shape = {64, 1};
  kernels[0].call.attrs.erase("transpose_b");
  kernels[2].call.in[1].shape = {64, 1};
  kernels[2].call.attrs.set("transpose_b", true);
  const std::optional<CudaKernel> kernel = prepare_head(kernels);
  REQUIRE(kernel.has_value());
  must(cudaMalloc(&b.memory, static_cast<size_t>(std::max<int64_t>(b.scratch.bytes(), 16))));
  b.scratch.set_memory(b.memory);
  run(*kernel);
  check_results(b, b.tensors.download());

  const float nan = std::numeric_limits<float>::quiet_NaN(), large = 2.0f;
  must(cudaMemcpy(b.tensors.arg(b.x).as<float>() + 7 * 64 + 3, &nan, sizeof(nan), cudaMemcpyHostToDevice));
  must(cudaMemcpy(b.tensors.arg(b.slope_at).as<float>() + 7 * 64, &large, sizeof(large), cudaMemcpyHostToDevice));
  run(*kernel);
  const std::vector<float> y = b.tensors.values(b.y, b.tensors.download());
  const std::vector<float> dx = b.tensors.values(b.dx, b.tensors.download());
  for (size_t row = 0; row < y.size(); ++row) CHECK(std::isnan(y[row]) == (row == 7));
  CHECK(std::isnan(dx[size_t{7} * 64]));
  CHECK_FALSE(std::isnan(dx[size_t{6} * 64]));
  CHECK(std::isnan(b.tensors.values(b.loss, b.tensors.download())[0]));
}

}  // namespace
}  // namespace trainctl
