// Tests of the gradients of several weights in one launch, and of the descent steps that use them, against float64.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

#include "engine/ops/small_step/kernel_group_cuda.h"
#include "tests/op_cases/cuda/cuda_device.h"
#include "tests/op_cases/cuda/device_tensors.h"
#include "tests/op_cases/cuda/small_step_on.h"

namespace trainctl {
namespace {

struct Layer {
  int64_t in, out;
};

struct Group {
  int64_t rows;
  std::vector<Layer> layers;
  bool kn = false;  ///< layout of the weights: [in,out], or [out,in]
  bool descend = true, biases = true, aligned = true;
};

/// One result: its previous value plus, for a weight, the sum over rows of the products x dy, or, for a bias, the sum
/// of dy.
struct Expected {
  double rate;
  const float *x, *dy;  ///< row 0; no x: a bias
  int64_t rows, x_step, dy_step;

  void compare(Worst& worst, double got, double before) const {
    double value = before, terms = std::fabs(before);
    for (int64_t r = 0; r < rows; ++r) {
      const double term = rate * dy[r * dy_step] * (x == nullptr ? 1.0 : x[r * x_step]);
      value += term;
      terms += std::fabs(term);
    }
    worst.compare(got, value, terms);
  }
};

struct Operands {
  int x, dy, w, bias;
};

void check_layer(const Group& g, const Layer& l, const Tensors& tensors, const Operands& o,
                 const std::vector<float>& after) {
  const auto at = [&](const std::vector<float>& of, int tensor) {
    return &of[static_cast<size_t>(tensors.first(tensor))];
  };
  const float *x = at(after, o.x), *dy = at(after, o.dy);
  const double rate = g.descend ? -0.25 : 1.0;
  Worst weights, biases;
  for (int64_t j = 0; j < l.out; ++j) {
    const auto initial = [&](int tensor, int64_t i) { return g.descend ? at(tensors.before(), tensor)[i] : 0.0; };
    if (g.biases)
      Expected{rate, nullptr, dy + j, g.rows, 0, l.out}.compare(biases, at(after, o.bias)[j], initial(o.bias, j));
    for (int64_t i = 0; i < l.in; ++i) {
      const int64_t place = g.kn ? i * l.out + j : j * l.in + i;
      Expected{rate, x + i, dy + j, g.rows, l.in, l.out}.compare(weights, at(after, o.w)[place], initial(o.w, place));
    }
  }
  CHECK(weights.relative() < 2e-6);
  if (g.biases) CHECK(biases.relative() < 2e-6);
}

void check_group(const Group& g) {
  CAPTURE(g.rows);
  CAPTURE(g.kn);
  CAPTURE(g.descend);
  CAPTURE(g.aligned);
  Tensors tensors(g.aligned);
  std::vector<Operands> operands;
  const float initial = g.descend ? 1.0f : 0.0f;
  for (const Layer& l : g.layers) {
    const Shape weight = g.kn ? Shape{l.in, l.out} : Shape{l.out, l.in};
    operands.push_back({tensors.add({g.rows, l.in}, 1.0f), tensors.add({g.rows, l.out}, 1.0f),
                        tensors.add(weight, initial), tensors.add({l.out}, initial)});
  }
  const int scalars = tensors.add({8}, 1.0f);
  CudaScratch scratch;
  std::vector<float> once;
  for (int time = 0; time < 2; ++time) {
    tensors.upload();
    StepScalars rate;
    rate.learning_rate = 0.25f;
    must(cudaMemcpy(tensors.arg(scalars).data, &rate, sizeof(rate), cudaMemcpyHostToDevice));
    std::vector<GroupedKernel> kernels;
    for (const Operands& o : operands) {
      CudaKernelCall call;
      call.in = {tensors.arg(o.x), tensors.arg(o.dy)};
      call.out = {tensors.arg(o.w, g.descend)};
      if (g.biases) call.out.push_back(tensors.arg(o.bias, g.descend));
      call.attrs = {{"kn", g.kn}};
      set_epilogue(call.attrs, {.bias_grad = g.biases, .descend = g.descend});
      call.scalars = tensors.arg(scalars).as<StepScalars>();
      call.scratch = &scratch;
      kernels.push_back({&get_kernel("matmul_weight_grad"), call});
    }
    const std::optional<CudaKernel> all = prepare_group(kernels);
    REQUIRE(all.has_value());
    run(*all);
    const std::vector<float> after = tensors.download();
    if (time > 0) {
      CHECK(std::memcmp(once.data(), after.data(), once.size() * sizeof(float)) == 0);
      break;
    }
    once = after;
    for (size_t l = 0; l < g.layers.size(); ++l) check_layer(g, g.layers[l], tensors, operands[l], after);
  }
}

TEST_CASE("cuda: gradients of several weights in one launch, and steps of descent, follow float64 in every layout") {
  if (!gpu_is_here()) return;
  const SmallStepOn weight_grads_small_step;
  const std::vector<Layer> reference{{784, 512}, {512, 512}, {512, 1}};
  for (const int64_t rows : {1, 7, 32, 33}) check_group({rows, reference});
  check_group({256, reference});
  check_group({24, reference, true});
  check_group({24, {{512, 784}, {512, 512}}, true});
  check_group({24, reference, false, false, false});
  check_group({24, reference, true, false});
  check_group({24, reference, false, true, true, false});
  // There are more rows than fit into shared memory at a time. The last tiles end inside slabs of columns, or before
  // them.
  check_group({257, {{612, 412}, {700, 508}}});
  check_group({600, {{612, 412}, {700, 508}}, true, false});
  check_group({300, {{4, 4240}, {2900, 68}, {64, 92}, {1, 77}, {101, 1}}});
  check_group({5, {{4, 4}, {784, 500}, {500, 300}, {260, 260}, {8, 132}, {36, 28}, {92, 64}, {4, 96}, {12, 8}}});
  check_group({65, {{785, 512}, {512, 511}}});
  check_group({200, {{100, 64}, {64, 36}}});
}

TEST_CASE("cuda: a NaN in a gradient of rows reaches only the weights of its row") {
  if (!gpu_is_here()) return;
  const SmallStepOn weight_grads_small_step;
  Tensors tensors(true);
  const int x = tensors.add({8, 16}, 1.0f), dy = tensors.add({8, 16}, 1.0f);
  const std::vector<int> weights{tensors.add({16, 16}, 0.0f), tensors.add({16, 16}, 0.0f)};
  tensors.upload();
  const uint32_t nan = 0x7fffffff;  // the one that a GPU makes
  must(cudaMemcpy(tensors.arg(dy).as<float>() + 3, &nan, sizeof(nan), cudaMemcpyHostToDevice));
  CudaScratch scratch;
  std::vector<GroupedKernel> kernels;
  for (const int weight : weights) {
    CudaKernelCall call;
    call.in = {tensors.arg(x), tensors.arg(dy)};
    call.out = {tensors.arg(weight)};
    call.scratch = &scratch;
    kernels.push_back({&get_kernel("matmul_weight_grad"), call});
  }
  const std::optional<CudaKernel> all = prepare_group(kernels);
  REQUIRE(all.has_value());
  run(*all);
  const std::vector<float> after = tensors.download();
  for (const int weight : weights)
    for (size_t i = 0; i < 16 * 16; ++i)
      CHECK(std::isnan(after[static_cast<size_t>(tensors.first(weight)) + i]) == (i / 16 == 3));

  CHECK_FALSE(prepare_group(std::span(kernels).first(1)).has_value());  // a single kernel is not a group
  kernels[1].call.in[0].data = kernels[0].call.out[0].data;             // what the first kernel writes at the same time
  CHECK_FALSE(prepare_group(kernels).has_value());
}

}  // namespace
}  // namespace trainctl
