// Tests of the kernels that only compiled programs use: moves, sums of gradients, optimizers. Also tests for all
// kernels that a run allocates nothing.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "engine/ops/kernel.h"
#include "engine/ops/loss_def.h"
#include "engine/ops/optimizer_def.h"
#include "engine/ops/random.h"
#include "tests/op_cases/allocations.h"
#include "tests/op_cases/case_device.h"

namespace trainctl {
namespace {

using ProgramKernelsFloats = std::vector<float>;

ProgramKernelsFloats random_floats(size_t n, uint64_t key) {
  ProgramKernelsFloats values(n);
  for (size_t i = 0; i < n; ++i) values[i] = 2.0f * philox_uniform(key, i, 0) - 1.0f;
  return values;
}

/// Refills the values in place, because kernels keep their address.
void refill(ProgramKernelsFloats& values, uint64_t key) {
  const ProgramKernelsFloats next = random_floats(values.size(), key);
  std::copy(next.begin(), next.end(), values.begin());
}

TensorArg arg(ProgramKernelsFloats& values, DType dtype = DType::f32) {
  const Shape shape{static_cast<int64_t>(values.size())};
  TensorArg a{values.data(), dtype, shape, shape, {0}};
  return a;
}

CpuKernel prepare(const char* name, std::vector<TensorArg> in, std::vector<TensorArg> out, Attrs attrs = {},
                  const StepScalars* scalars = &kUnscaledStep) {
  KernelCall call{std::move(in), std::move(out), std::move(attrs), scalars};
  return find_cpu_kernel(name)->prepare(call);
}

ProgramKernelsFloats poison(size_t n) { return ProgramKernelsFloats(n, std::numeric_limits<float>::quiet_NaN()); }

Attrs parts(int64_t outer, int64_t count, int64_t inner) {
  return {{"outer", outer}, {"parts", count}, {"inner", inner}};
}

/// The effect of an optimizer on one weight, in double.
struct WeightReference {
  double w, m = 0, v = 0;
  void sgd(double g, double lr, double momentum, bool nesterov, double decay) {
    g += decay * w;
    m = momentum * m + g;
    w -= lr * (momentum == 0 ? g : nesterov ? g + momentum * m : m);
  }
  void adam(double g, double lr, int step, double decay, bool decoupled) {
    if (decoupled) w *= 1 - lr * decay;
    if (!decoupled) g += decay * w;
    m = 0.9 * m + 0.1 * g;
    v = 0.999 * v + 0.001 * g * g;
    const double bias1 = 1 - std::pow(0.9, step), bias2 = 1 - std::pow(0.999, step);
    w -= lr / bias1 * m / (std::sqrt(v) / std::sqrt(bias2) + 1e-8);
  }
};

constexpr size_t kWeights = 37;

double norm_of(const ProgramKernelsFloats& g) {
  double squares = 0;
  for (float x : g) squares += double{x} * x;
  return std::sqrt(squares);
}

void check_weights(const ProgramKernelsFloats& weights, const std::vector<WeightReference>& expected) {
  for (size_t i = 0; i < weights.size(); ++i) CHECK(weights[i] == doctest::Approx(expected[i].w).epsilon(2e-6));
}

}  // namespace

TEST_CASE("pack makes each part contiguous and unpack reverses it") {
  for (const DType dtype : {DType::f32, DType::i32, DType::bf16}) {
    // The tensor is [outer 2, parts 3, inner 4]; two bf16 elements take the place of one float.
    const int64_t inner = dtype == DType::bf16 ? 8 : 4;
    ProgramKernelsFloats x = random_floats(24, 1), packed = poison(24), back = poison(24);
    const auto of = [&](ProgramKernelsFloats& values) {
      TensorArg a = arg(values, dtype);
      a.shape = a.global_shape = {6 * inner};
      return a;
    };
    prepare("pack", {of(x)}, {of(packed)}, parts(2, 3, inner))();
    for (size_t o = 0; o < 2; ++o) {
      for (size_t p = 0; p < 3; ++p) CHECK(std::memcmp(&packed[(p * 2 + o) * 4], &x[(o * 3 + p) * 4], 16) == 0);
    }
    prepare("unpack", {of(packed)}, {of(back)}, parts(2, 3, inner))();
    CHECK(std::memcmp(back.data(), x.data(), 96) == 0);
  }
}

TEST_CASE("copy_slice takes one part of each row") {
  ProgramKernelsFloats x = random_floats(24, 1), y = poison(8);
  Attrs attrs = parts(2, 3, 4);
  attrs.set("index", int64_t{1});
  prepare("copy_slice", {arg(x)}, {arg(y)}, attrs)();
  CHECK(std::memcmp(&y[0], &x[4], 16) == 0);
  CHECK(std::memcmp(&y[4], &x[16], 16) == 0);
}

TEST_CASE("accumulate adds, zero clears") {
  ProgramKernelsFloats x = random_floats(kWeights, 1), y = random_floats(kWeights, 2);
  const ProgramKernelsFloats before = y;
  prepare("accumulate", {arg(x)}, {arg(y)})();
  for (size_t i = 0; i < kWeights; ++i) CHECK(y[i] == before[i] + x[i]);
  prepare("zero", {}, {arg(y)})();
  CHECK(y == ProgramKernelsFloats(kWeights, 0.0f));
}

TEST_CASE("sum_squares is the squared norm, and can accumulate") {
  ProgramKernelsFloats x = random_floats(1001, 1), out = poison(1);
  prepare("sum_squares", {arg(x)}, {arg(out)})();
  CHECK(out[0] == doctest::Approx(norm_of(x) * norm_of(x)).epsilon(1e-7));
  TensorArg more = arg(out);
  more.accumulate = true;
  prepare("sum_squares", {arg(x)}, {more})();
  CHECK(out[0] == doctest::Approx(2 * norm_of(x) * norm_of(x)).epsilon(1e-7));
}

TEST_CASE("sgd_update follows torch.optim.SGD, with momentum, nesterov, weight decay and clipping") {
  for (int bits = 0; bits < 16; ++bits) {
    const double momentum = (bits & 1) != 0 ? 0.9 : 0.0, decay = (bits & 4) != 0 ? 0.01 : 0.0;
    const bool nesterov = (bits & 2) != 0 && momentum > 0;
    const double clip = (bits & 8) != 0 ? 1.5 : 0.0;
    CAPTURE(bits);
    ProgramKernelsFloats w = random_floats(kWeights, 1), g = poison(kWeights), buffer(kWeights, 0.0f),
                         squared = poison(1);
    std::vector<WeightReference> expected;
    for (float x : w) expected.push_back({x});
    StepScalars scalars;
    const Attrs attrs{{"momentum", momentum}, {"nesterov", nesterov}, {"weight_decay", decay}, {"clip_norm", clip}};
    const auto kernel = prepare("sgd_update", {arg(g), arg(squared)}, {arg(w), arg(buffer)}, attrs, &scalars);
    for (int step = 0; step < 5; ++step) {
      refill(g, 10 + static_cast<uint64_t>(step));
      scalars.learning_rate = 0.1f / static_cast<float>(1 + step);
      squared[0] = static_cast<float>(norm_of(g) * norm_of(g));
      const double scale = clip > 0 ? std::min(1.0, clip / (norm_of(g) + 1e-6)) : 1.0;
      kernel();
      for (size_t i = 0; i < kWeights; ++i) {
        expected[i].sgd(scale * g[i], double{scalars.learning_rate}, momentum, nesterov, decay);
      }
      check_weights(w, expected);
    }
  }
}

TEST_CASE("adam_update follows torch.optim.Adam and AdamW") {
  for (const bool decoupled : {false, true}) {
    for (const double clip : {0.0, 100.0, 0.5}) {
      ProgramKernelsFloats w = random_floats(kWeights, 1), g = poison(kWeights), m(kWeights, 0.0f), v(kWeights, 0.0f),
                           squared = poison(1);
      std::vector<WeightReference> expected;
      for (float x : w) expected.push_back({x});
      StepScalars scalars{.learning_rate = 0.01f};
      const Attrs attrs{{"beta1", 0.9},        {"beta2", 0.999},         {"eps", 1e-8},
                        {"weight_decay", 0.1}, {"decoupled", decoupled}, {"clip_norm", clip}};
      const auto kernel = prepare("adam_update", {arg(g), arg(squared)}, {arg(w), arg(m), arg(v)}, attrs, &scalars);
      for (int step = 1; step <= 5; ++step) {
        refill(g, 10 + static_cast<uint64_t>(step));
        squared[0] = static_cast<float>(norm_of(g) * norm_of(g));
        scalars.adam_bias1 = static_cast<float>(1 - std::pow(0.9, step));
        scalars.adam_bias2 = static_cast<float>(1 - std::pow(0.999, step));
        const double scale = clip > 0 ? std::min(1.0, clip / (norm_of(g) + 1e-6)) : 1.0;
        kernel();
        for (size_t i = 0; i < kWeights; ++i) expected[i].adam(scale * g[i], 0.01, step, 0.1, decoupled);
        check_weights(w, expected);
      }
    }
  }
}

TEST_CASE("an optimizer writes the bf16 copy of the weights, to nearest even") {
  const StepScalars scalars{.learning_rate = 0.0f};
  // Ties are rounded to the even neighbor. The last number is a NaN, which rounding up would turn into an infinity.
  ProgramKernelsFloats w = {1.0f, 1.00390625f, 1.01171875f, -1.004f, 3.4e38f, std::bit_cast<float>(0x7f800001u)};
  const std::vector<uint16_t> expected = {0x3f80, 0x3f80, 0x3f82, 0xbf81, 0x7f80, 0x7fc0};
  for (const char* op : {"sgd_update", "adam_update"}) {
    ProgramKernelsFloats g(w.size(), 0.0f), m = g, v = g;
    std::vector<uint16_t> copy(w.size());
    TensorArg last{copy.data(), DType::bf16, {6}, {6}, {0}};
    std::vector<TensorArg> out = {arg(w), arg(m), last};
    if (op[0] == 'a') out.insert(out.begin() + 2, arg(v));
    prepare(op, {arg(g)}, out, {{"momentum", 0.9}}, &scalars)();
    CHECK(copy == expected);
  }
}

TEST_CASE("a loss with its gradient gives the bits of the two kernels, also in the prediction's memory") {
  for (const LossDef* def : all_losses()) {
    for (const bool in_place : {false, true}) {
      CAPTURE(def->name);
      CAPTURE(in_place);
      ProgramKernelsFloats prediction = random_floats(60, 1), label = random_floats(60, 2), loss = {0.25f},
                           expected_loss = loss;
      ProgramKernelsFloats grad = poison(60), expected = poison(60);
      std::vector<int32_t> classes = {3, 0, 4, 4, 1, 2, 0, 3, 1, 1, 2, 4};
      const auto shaped = [](ProgramKernelsFloats& values) {
        TensorArg a = arg(values);
        a.shape = a.global_shape = {12, 5};
        return a;
      };
      TensorArg labels = shaped(label), sum = arg(loss), expected_sum = arg(expected_loss);
      const bool reads_classes = def->labels_are_classes && def->compose == nullptr;
      if (reads_classes) labels = {classes.data(), DType::i32, {12}, {12}, {0}};
      sum.accumulate = expected_sum.accumulate = true;
      const Attrs attrs{{"scale", 0.125}};
      ProgramKernelsFloats teacher = random_floats(60, 3);
      const auto run = [&](const char* name, std::vector<TensorArg> out) {
        std::vector<TensorArg> in = {shaped(prediction), labels};
        if (!def->reads.empty() && def->compose == nullptr) in.push_back(shaped(teacher));
        prepare(name, std::move(in), std::move(out), attrs)();
      };
      run(def->op->name, {expected_sum});
      run(def->op->kernel.loss_grad->name, {shaped(expected)});
      run(def->op->kernel.loss_with_grad->name, {sum, shaped(in_place ? prediction : grad)});
      CHECK(loss == expected_loss);
      CHECK((in_place ? prediction : grad) == expected);
    }
  }
}

TEST_CASE("the optimizers and sums run without allocating") {
  ProgramKernelsFloats w(4096, 1.0f), g(4096, 0.5f), m(4096, 0.0f), v(4096, 0.0f), one(1, 0.0f);
  const StepScalars scalars{.learning_rate = 0.1f, .adam_bias1 = 0.1f, .adam_bias2 = 0.001f};
  const CpuKernel kernels[] = {
      prepare("sgd_update", {arg(g)}, {arg(w), arg(m)}, {{"momentum", 0.9}}, &scalars),
      prepare("adam_update", {arg(g)}, {arg(w), arg(m), arg(v)}, {}, &scalars),
      prepare("sum_squares", {arg(g)}, {arg(one)}),
      prepare("accumulate", {arg(g)}, {arg(w)}),
      prepare("zero", {}, {arg(w)}),
      prepare("pack", {arg(g)}, {arg(w)}, parts(4, 8, 128)),
  };
  const int64_t before = allocations();
  for (const CpuKernel& kernel : kernels) kernel();
  CHECK(allocations() == before);
}

TEST_CASE("a weight gradient fused with the bias gradient gives the results of the two kernels, also as a step") {
  for (const bool kn : {false, true}) {
    for (const bool descend : {false, true}) {
      constexpr int64_t kRows = 6, kIn = 5, kOut = 3;
      const StepScalars scalars{.learning_rate = 0.25f};
      ProgramKernelsFloats x = random_floats(kRows * kIn, 1), dy = random_floats(kRows * kOut, 2);
      ProgramKernelsFloats dw = random_floats(kIn * kOut, 3), db = random_floats(kOut, 4), dw_apart = dw, db_apart = db;
      const auto of = [&](ProgramKernelsFloats& values, Shape shape) {
        TensorArg a = arg(values);
        a.offset = Shape(shape.size(), 0);
        a.shape = a.global_shape = std::move(shape);
        a.accumulate = descend;
        return a;
      };
      const Shape weight = kn ? Shape{kIn, kOut} : Shape{kOut, kIn};
      Attrs attrs{{"kn", kn}};
      set_epilogue(attrs, {.descend = descend});
      const std::vector<TensorArg> in = {of(x, {kRows, kIn}), of(dy, {kRows, kOut})};
      prepare("matmul_weight_grad", in, {of(dw_apart, weight)}, attrs, &scalars)();
      prepare("bias_grad", {in[1]}, {of(db_apart, {kOut})}, attrs, &scalars)();
      set_epilogue(attrs, {.bias_grad = true, .descend = descend});
      prepare("matmul_weight_grad", in, {of(dw, weight), of(db, {kOut})}, attrs, &scalars)();
      CHECK(dw == dw_apart);
      CHECK(db == db_apart);
    }
  }
}

TEST_CASE("some rows of a weight gradient equal those of the whole, and the bias gradient stays whole") {
  for (const bool kn : {false, true}) {
    constexpr int64_t kRows = 9, kIn = 40, kOut = 24, kPiece = 8;
    const StepScalars scalars;
    ProgramKernelsFloats x = random_floats(kRows * kIn, 1), dy = random_floats(kRows * kOut, 2);
    ProgramKernelsFloats whole(kIn * kOut), pieces(kIn * kOut), db(kOut), db_of_piece(kOut);
    const auto of = [&](float* values, Shape shape) {
      return TensorArg{values, DType::f32, shape, shape, Shape(shape.size(), 0)};
    };
    const Shape weight = kn ? Shape{kIn, kOut} : Shape{kOut, kIn};
    const std::vector<TensorArg> in = {of(x.data(), {kRows, kIn}), of(dy.data(), {kRows, kOut})};
    prepare("matmul_weight_grad", in, {of(whole.data(), weight)}, {{"kn", kn}}, &scalars)();
    prepare("bias_grad", {in[1]}, {of(db.data(), {kOut})}, {}, &scalars)();
    for (int64_t row = 0; row < weight[0]; row += kPiece) {
      std::vector<TensorArg> out = {of(pieces.data() + row * weight[1], {kPiece, weight[1]})};
      if (row == 0) out.push_back(of(db_of_piece.data(), {kOut}));
      Attrs attrs{{"kn", kn}, {"first_row", row}};
      set_epilogue(attrs, {.bias_grad = row == 0});
      prepare("matmul_weight_grad", in, out, attrs, &scalars)();
    }
    CHECK(pieces == whole);
    CHECK(db_of_piece == db);
  }
}

}  // namespace trainctl
