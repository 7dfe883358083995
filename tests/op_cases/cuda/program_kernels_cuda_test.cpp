// The kernels that only compiled programs use, on a GPU, against the CPU's on the same bytes. And the rule that no
// kernel is missing.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/graph/bf16.h"
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/random.h"
#include "tests/op_cases/cuda/cuda_device.h"

namespace trainctl {
namespace {

using Floats = std::vector<float>;

Floats random_floats(int64_t n, uint64_t key) {
  Floats values(static_cast<size_t>(n));
  for (size_t i = 0; i < values.size(); ++i) values[i] = 2.0f * philox_uniform(key, i, 0) - 1.0f;
  return values;
}

/// An operand as the test holds it: floats, that may go to a kernel as bf16.
struct Operand {
  Floats values;
  DType dtype = DType::f32;
  bool accumulate = false;
};

Operand random(int64_t n, uint64_t key, DType dtype = DType::f32) {
  Operand o{random_floats(n, key), dtype};
  if (dtype == DType::bf16) {
    for (float& v : o.values) v = from_bf16(to_bf16(v));
  }
  return o;
}
Operand unwritten(int64_t n, DType dtype = DType::f32) {
  return {Floats(static_cast<size_t>(n), std::numeric_limits<float>::quiet_NaN()), dtype};
}

struct Call {
  std::string op;
  std::vector<Operand> in, out;
  Attrs attrs;
  StepScalars scalars = {};
};

/// The outputs of one run, or of several on the same memory. The CPU computes in f32 what a GPU takes as bf16.
std::vector<Floats> run(const CaseDevice& device, const Call& call, bool wide, int times = 1) {
  KernelCall kernel;
  kernel.attrs = call.attrs;
  kernel.scalars = &call.scalars;
  std::vector<std::vector<uint32_t>> memory;
  const auto arg = [&](const Operand& o) {
    const auto n = static_cast<int64_t>(o.values.size());
    std::vector<uint32_t>& words = memory.emplace_back(o.values.size());
    TensorArg a{words.data(), wide ? DType::f32 : o.dtype, {n}, {n}, {0}};
    a.accumulate = o.accumulate;
    for (size_t i = 0; i < o.values.size(); ++i) {
      if (a.dtype == DType::f32) a.as<float>()[i] = o.values[i];
      if (a.dtype == DType::bf16) a.as<uint16_t>()[i] = to_bf16(o.values[i]);
    }
    return a;
  };
  for (const Operand& o : call.in) kernel.in.push_back(arg(o));
  for (const Operand& o : call.out) kernel.out.push_back(arg(o));
  const auto prepared = device.prepare(call.op, kernel);
  for (int i = 0; i < times; ++i) prepared();
  std::vector<Floats> results;
  for (const TensorArg& a : kernel.out) {
    Floats& values = results.emplace_back(static_cast<size_t>(a.size()));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = a.dtype == DType::f32 ? a.as<float>()[i] : from_bf16(a.as<uint16_t>()[i]);
    }
  }
  return results;
}

/// As the CPU, at every alignment, in one run and in three, and with the same bits each time.
void check_as_cpu(const Call& call, double tolerance, bool wide_reference = false) {
  CAPTURE(call.op);
  CAPTURE(to_string(call.attrs));
  for (const int times : {1, 3}) {
    const std::vector<Floats> expected = run(cpu_device(), call, wide_reference, times);
    for (const int misaligned_by : {0, 4, 12}) {
      CAPTURE(misaligned_by);
      const std::vector<Floats> got = run(cuda_device(misaligned_by), call, false, times);
      CHECK(got == run(cuda_device(misaligned_by), call, false, times));
      for (size_t o = 0; o < expected.size(); ++o) {
        double worst = 0;
        for (size_t i = 0; i < expected[o].size(); ++i) {
          const double off = std::fabs(double{got[o][i]} - double{expected[o][i]});
          const double part = off / std::max(1.0, std::fabs(double{expected[o][i]}));
          if (!(part <= worst)) worst = std::isnan(part) ? INFINITY : part;
        }
        CAPTURE(o);
        CHECK(worst <= tolerance);
      }
    }
  }
}

Attrs parts(int64_t outer, int64_t count, int64_t inner, int64_t index = 0) {
  return {{"outer", outer}, {"parts", count}, {"inner", inner}, {"index", index}};
}

const int64_t kSizes[] = {1, 7, 37, 4096, 70001};

}  // namespace

TEST_CASE("every CPU kernel has a CUDA kernel of its name, and there is no other") {
  if (all_cuda_kernels().empty()) return;  // a build without CUDA
  for (const CpuKernelDef& kernel : all_cpu_kernels()) {
    CHECK_MESSAGE(find_cuda_kernel(kernel.name) != nullptr, "no CUDA kernel of ", kernel.name,
                  " in all_cuda_kernels.cpp");
  }
  for (const CudaKernelDef& kernel : all_cuda_kernels()) {
    CHECK_MESSAGE(find_cpu_kernel(kernel.name) != nullptr, "no CPU kernel of ", kernel.name, " in all_cpu_kernels.cpp");
  }
}

TEST_CASE("moves on a GPU give what they give on the CPU") {
  if (!gpu_is_here()) return;
  for (const auto& [outer, count, inner] :
       {std::array<int64_t, 3>{2, 3, 4}, {1, 1, 5}, {7, 5, 3}, {130, 4, 64}, {3, 2, 20011}}) {
    const int64_t n = outer * count * inner;
    check_as_cpu({"pack", {random(n, 1)}, {unwritten(n)}, parts(outer, count, inner)}, 0);
    check_as_cpu({"unpack", {random(n, 1)}, {unwritten(n)}, parts(outer, count, inner)}, 0);
    const Attrs last = parts(outer, count, inner, count - 1);
    check_as_cpu({"copy_slice", {random(n, 1)}, {unwritten(outer * inner)}, last}, 0);
    // bf16 on the GPU alone: the CPU moves the same values as f32.
    const Operand x = random(n, 1, DType::bf16);
    check_as_cpu({"pack", {x}, {unwritten(n, DType::bf16)}, parts(outer, count, inner)}, 0, true);
    check_as_cpu({"copy_slice", {x}, {unwritten(outer * inner, DType::bf16)}, last}, 0, true);
    check_as_cpu({"copy_slice", {x}, {unwritten(outer * inner)}, last}, 0, true);
    check_as_cpu({"copy_slice", {random(n, 1)}, {unwritten(outer * inner, DType::bf16)}, last}, 4e-3, true);
    check_as_cpu({"copy_slice", {x}, {unwritten(outer * inner)}, last}, 0, true);  // converts
  }
}

TEST_CASE("sums of gradients on a GPU give what they give on the CPU") {
  if (!gpu_is_here()) return;
  for (const int64_t n : kSizes) {
    check_as_cpu({"accumulate", {random(n, 1)}, {random(n, 2)}, {}}, 0);
    check_as_cpu({"accumulate", {random(n, 1, DType::bf16)}, {random(n, 2)}, {}}, 0, true);
    check_as_cpu({"zero", {}, {random(n, 1)}, {}}, 0);
    check_as_cpu({"sum_squares", {random(n, 1)}, {unwritten(1)}, {}}, 1e-6);
    check_as_cpu({"sum_squares", {random(n, 1, DType::bf16)}, {{{0.5f}, DType::f32, true}}, {}}, 1e-6, true);
  }
}

TEST_CASE("the optimizers on a GPU give what they give on the CPU, and the weights' bf16 copy") {
  if (!gpu_is_here()) return;
  const StepScalars scalars{.learning_rate = 0.1f, .adam_bias1 = 0.3f, .adam_bias2 = 0.01f};
  for (const int64_t n : kSizes) {
    for (int bits = 0; bits < 32; ++bits) {
      const bool copy = (bits & 1) != 0;
      const double clip = (bits & 2) != 0 ? 1.5 : 0.0, decay = (bits & 4) != 0 ? 0.01 : 0.0;
      const bool flag = (bits & 8) != 0;
      const DType gradient = (bits & 16) != 0 ? DType::bf16 : DType::f32;
      if (gradient == DType::bf16 && copy) continue;  // the CPU rounds nothing where it stands in for bf16
      const std::vector<Operand> in = {random(n, 3, gradient), {{9.0f}}};
      const auto states = [&](int count) {
        std::vector<Operand> out;
        for (int k = 0; k <= count; ++k) out.push_back(random(n, 4 + static_cast<uint64_t>(k)));
        if (count == 2) {
          for (float& v : out[2].values) v = std::fabs(v);
        }
        if (copy) out.push_back(unwritten(n, DType::bf16));
        return out;
      };
      const bool wide = gradient == DType::bf16;
      // A bf16 copy may round to the other neighbour.
      const double tolerance = copy ? 1e-2 : 2e-6;
      check_as_cpu({"sgd_update", in, states(0), {{"weight_decay", decay}, {"clip_norm", clip}}, scalars}, tolerance,
                   wide);
      check_as_cpu({"sgd_update",
                    in,
                    states(1),
                    {{"momentum", 0.9}, {"nesterov", flag}, {"weight_decay", decay}, {"clip_norm", clip}},
                    scalars},
                   tolerance, wide);
      check_as_cpu(
          {"adam_update", in, states(2), {{"weight_decay", decay}, {"decoupled", flag}, {"clip_norm", clip}}, scalars},
          tolerance, wide);
    }
  }
}

TEST_CASE("losses with their gradients on a GPU give what they give on the CPU, and on the prediction too") {
  if (!gpu_is_here()) return;
  const Attrs attrs{{"scale", 0.01}};
  for (const int64_t n : kSizes) {
    for (const char* op : {"mae_with_grad", "mse_with_grad"}) {
      check_as_cpu({op, {random(n, 1), random(n, 2)}, {unwritten(1), unwritten(n)}, attrs}, 2e-6);
      check_as_cpu({op, {random(n, 1), random(n, 2)}, {{{0.5f}, DType::f32, true}, unwritten(n)}, attrs}, 2e-6);
      check_as_cpu({op, {random(n, 1, DType::bf16), random(n, 2)}, {unwritten(1), unwritten(n, DType::bf16)}, attrs},
                   1e-2, true);
    }
  }
}

TEST_CASE("kernels over an empty batch on a GPU write what they write on the CPU") {
  if (!gpu_is_here()) return;
  const auto check_call = [](const std::string& op, std::vector<TensorArg> in, std::vector<Shape> out) {
    for (const bool accumulate : {false, true}) {
      CAPTURE(op);
      CAPTURE(accumulate);
      const auto results = [&](const CaseDevice& device) {
        std::vector<Floats> memory;
        KernelCall call;
        call.in = in;
        for (const Shape& shape : out) {
          Floats& values = memory.emplace_back(static_cast<size_t>(num_elements(shape)), 3.0f);
          call.out.push_back({values.data(), DType::f32, shape, shape, Shape(shape.size())});
        }
        call.out[0].accumulate = accumulate;
        device.prepare(op, call)();
        return memory;
      };
      CHECK(results(cuda_device()) == results(cpu_device()));
    }
  };
  const auto nothing = [](const Shape& shape, DType dtype) {
    return TensorArg{nullptr, dtype, shape, shape, Shape(shape.size())};
  };
  const TensorArg logits = nothing({0, 7}, DType::f32), ids = nothing({0}, DType::i32);
  check_call("softmax_cross_entropy", {logits, ids}, {{1}});
  check_call("softmax_cross_entropy_with_grad", {logits, ids}, {{1}, {0, 7}});
  for (const int64_t width : {1, 65, 128, 2500}) {
    check_call("embedding_grad", {nothing({0, width}, DType::f32), ids}, {{37, width}});
    check_call("layer_norm_param_grad",
               {nothing({0, width}, DType::f32), nothing({0, width}, DType::f32), nothing({0}, DType::f32),
                nothing({0}, DType::f32)},
               {{width}, {width}});
  }
}

TEST_CASE("element-wise chains on a GPU give what they give on the CPU") {
  if (!gpu_is_here()) return;
  const StepScalars scalars{.step = 5};
  const auto chain = [](const char* text) { return Attrs{{"expression", std::string(text)}}; };
  for (const auto& [n, row] :
       {std::array<int64_t, 2>{1, 1}, {111, 37}, {4096, 64}, {70000, 8}, {69989, 3043}, {8192, 8192}}) {
    for (const DType t : {DType::f32, DType::bf16}) {
      const bool wide = t == DType::bf16;
      const double tolerance = wide ? 1e-2 : 5e-6;
      const Operand x = random(n, 1, t), y = random(n, 2, t), z = random(n, 3, t), b = random(row, 4, t),
                    out = unwritten(n, t);
      check_as_cpu({"elementwise", {x, b, y}, {out}, chain("x0 b1 + relu x2 * =0")}, tolerance, wide);
      check_as_cpu({"elementwise", {x, y}, {out, out}, chain("x0 x1 + :0 =0 $0 gelu =1")}, tolerance, wide);
      check_as_cpu({"elementwise", {x, y, z}, {out}, chain("x0 x1 gelu_grad x2 sigmoid_grad x1 tanh_grad =0")},
                   tolerance, wide);
      check_as_cpu(
          {"elementwise", {x, y, z, y}, {out}, chain("x0 sigmoid :0 x1 tanh x2 gelu_tanh x3 relu_grad * $0 + + =0")},
          tolerance, wide);
      check_as_cpu({"elementwise", {x, y}, {out}, chain("x0 dropout(0.3,7) x1 + dropout(0.5,-9) =0"), scalars},
                   tolerance, wide);
      Operand sum = random(n, 5, t);
      sum.accumulate = true;
      check_as_cpu({"elementwise", {x, y}, {sum}, chain("x0 x1 gelu_tanh_grad =0")}, wide ? 3e-2 : tolerance, wide);
    }
  }
}

TEST_CASE("some rows of a weight gradient on a GPU are those of the whole, and a bias's gradient stays whole") {
  if (!gpu_is_here()) return;
  constexpr int64_t kRows = 96, kIn = 80, kOut = 64, kPiece = 16;
  const std::pair<DType, DType> types[] = {
      {DType::f32, DType::f32}, {DType::bf16, DType::f32}, {DType::bf16, DType::bf16}};
  for (const auto& [dtype, made_type] : types) {
    for (const bool kn : {false, true}) {
      CAPTURE(kn);
      const DType result = made_type;
      const Operand x = random(kRows * kIn, 1, dtype), dy = random(kRows * kOut, 2, dtype);
      const Shape weight = kn ? Shape{kIn, kOut} : Shape{kOut, kIn};
      const auto make = [&](const CaseDevice& device, bool wide, int64_t first_row, int64_t rows) {
        std::vector<std::vector<uint32_t>> memory;
        const auto arg = [&](const Floats& values, DType type, Shape shape) {
          std::vector<uint32_t>& words = memory.emplace_back(values.size());
          TensorArg a{words.data(), wide ? DType::f32 : type, shape, shape, Shape(shape.size(), 0)};
          for (size_t i = 0; i < values.size(); ++i) {
            if (a.dtype == DType::f32) a.as<float>()[i] = values[i];
            if (a.dtype == DType::bf16) a.as<uint16_t>()[i] = to_bf16(values[i]);
          }
          return a;
        };
        const auto written = [](int64_t n) { return unwritten(n).values; };
        KernelCall call;
        call.attrs = {{"kn", kn}, {"bias_grad", true}};
        if (rows < weight[0]) call.attrs.set("first_row", first_row);
        call.in = {arg(x.values, dtype, {kRows, kIn}), arg(dy.values, dtype, {kRows, kOut})};
        call.out = {arg(written(rows * weight[1]), result, {rows, weight[1]}), arg(written(kOut), result, {kOut})};
        device.prepare("matmul_weight_grad", call)();
        const auto floats = [](const TensorArg& a) {
          if (a.dtype == DType::f32) return Floats(a.as<float>(), a.as<float>() + a.size());
          Floats values(static_cast<size_t>(a.size()));
          std::transform(a.as<uint16_t>(), a.as<uint16_t>() + a.size(), values.begin(), from_bf16);
          return values;
        };
        return std::pair(floats(call.out[0]), floats(call.out[1]));
      };
      const auto [whole, bias] = make(cpu_device(), true, 0, weight[0]);
      for (int64_t row = 0; row < weight[0]; row += kPiece) {
        CAPTURE(row);
        const auto [piece, of_piece] = make(cuda_device(0), false, row, kPiece);
        const auto check_close = [&](float got, float expected) {
          CHECK(std::fabs(got - expected) < 1e-4f + (result == DType::bf16 ? 4e-3f * std::fabs(expected) : 0.0f));
        };
        for (size_t i = 0; i < piece.size(); ++i)
          check_close(piece[i], whole[static_cast<size_t>(row * weight[1]) + i]);
        for (size_t i = 0; i < bias.size(); ++i) check_close(of_piece[i], bias[i]);
      }
    }
  }
}

}  // namespace trainctl
