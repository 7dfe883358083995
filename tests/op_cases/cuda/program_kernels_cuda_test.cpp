// Compares the kernel cases of the families on a GPU with the CPU on the same bytes, and tests that no kernel is
// missing.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/graph/bf16.h"
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/random.h"
#include "tests/op_cases/cuda/cuda_device.h"
#include "tests/op_cases/kernel_case_run.h"
#include "tests/op_cases/op_case_checks.h"
#include "tests/skip.h"

namespace trainctl {
namespace {

using Floats = std::vector<float>;

Floats random_floats(int64_t n, uint64_t key) {
  Floats values(static_cast<size_t>(n));
  for (size_t i = 0; i < values.size(); ++i) values[i] = 2.0f * philox_uniform(key, i, 0) - 1.0f;
  return values;
}

/// Rounds the numbers to bf16 if a kernel takes bf16.
Floats rounded(Floats values, DType dtype) {
  for (float& v : values) v = dtype == DType::bf16 ? from_bf16(to_bf16(v)) : v;
  return values;
}

bool has_8_bit_numbers(const KernelCase& row) {
  const auto has_words = [](const CaseOperand& operand) {
    return operand.fill == CaseOperand::Fill::e4m3 || operand.fill == CaseOperand::Fill::e5m2;
  };
  return std::any_of(row.in.begin(), row.in.end(), has_words) || std::any_of(row.out.begin(), row.out.end(), has_words);
}

bool is_large(const KernelCase& row) {
  constexpr int64_t kLarge = 12'000;
  const auto large = [](const CaseOperand& operand) { return num_elements(operand.shape) > kLarge; };
  return std::any_of(row.in.begin(), row.in.end(), large) || std::any_of(row.out.begin(), row.out.end(), large);
}

/// Checks that the results on a GPU are those of the CPU, and have the same bits in a second run. On the emulator
/// (every_nth) only every fifth large call runs, and it is repeated only if its operands are aligned. Because five is
/// odd, all settings of options that alternate from call to call are tried.
class KernelCaseCheck {
 public:
  void operator()(const KernelCase& row) {
    const bool some = every_nth() > 1 && is_large(row);
    if (some && large_++ % 5 != 0) return;
    CAPTURE(row.name());
    const KernelCaseRun run(row);
    for (const int times : {1, 3}) {
      const Results expected = run.on(cpu_device(), row.f32_on_cpu, times);
      for (const int misaligned_by : {0, 4, 12}) {
        if (misaligned_by != 0 && has_8_bit_numbers(row)) continue;  // they begin where their buffer does
        if (misaligned_by != 0 && some && times != 1) continue;
        CAPTURE(misaligned_by);
        const Results got = run.on(cuda_device(misaligned_by), false, times);
        if (!some || misaligned_by == 0) CHECK(got == run.on(cuda_device(misaligned_by), false, times));
        for (size_t o = 0; o < expected.size(); ++o) {
          CAPTURE(o);
          CHECK(worst_part(got[o], expected[o]) <= row.tolerance);
        }
      }
    }
  }

 private:
  size_t large_ = 0;  ///< large calls so far
};

}  // namespace

TEST_CASE("every kernel has a CUDA kernel of its name, but for those that a family excepts with the reason") {
  REQUIRE(has_cuda_kernels());
  for (const FamilyCases& family : all_cases()) {
    const std::vector<Exemption>& exempt = family.cases.without_cuda;
    const auto check_kernel = [&](const char* name) {
      const bool excepted =
          std::any_of(exempt.begin(), exempt.end(), [&](const Exemption& e) { return std::string(e.kernel) == name; });
      CHECK_MESSAGE((find_cuda_kernel(name) != nullptr) != excepted, name);
    };
    for (const OpDef* op : family.family.ops)
      if (!op->collective) check_kernel(op->name);
    for (const KernelDef* kernel : family.family.kernels) check_kernel(kernel->name);
  }
}

TEST_CASE("kernels that only compiled programs use give on a GPU what they give on the CPU, at every alignment") {
  if (!gpu_is_here()) return;
  const auto runs_here = [](const KernelCase& row) { return find_cuda_kernel(row.kernel) != nullptr; };
  if (std::none_of(kernel_cases().begin(), kernel_cases().end(), runs_here)) {
    skip_test("TRAINCTL_OP_CASES names no family with calls of kernels");
    return;
  }
  KernelCaseCheck check_call;
  for (const KernelCase& row : kernel_cases())
    if (runs_here(row)) check_call(row);  // the others are excepted: see above
}

TEST_CASE("kernels over an empty batch on a GPU write what they write on the CPU") {
  if (!gpu_is_here()) return;
  const auto check_call = [](const std::string& op, std::vector<TensorArg> in, std::vector<Shape> out) {
    for (const bool accumulate : {false, true}) {
      CAPTURE(op);
      CAPTURE(accumulate);
      const auto results = [&](const CaseDevice& device) {
        std::vector<Floats> memory;
        KernelCall call{.in = in, .scalars = &kUnscaledStep};
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

TEST_CASE("some rows of a weight gradient on a GPU are those of the whole, and a bias's gradient stays whole") {
  if (!gpu_is_here()) return;
  constexpr int64_t kRows = 96, kIn = 80, kOut = 64, kPiece = 16;
  const std::pair<DType, DType> types[] = {
      {DType::f32, DType::f32}, {DType::bf16, DType::f32}, {DType::bf16, DType::bf16}};
  for (const auto& [dtype, made_type] : types) {
    for (const bool kn : {false, true}) {
      CAPTURE(kn);
      const DType result = made_type;
      const Floats x = rounded(random_floats(kRows * kIn, 1), dtype);
      const Floats dy = rounded(random_floats(kRows * kOut, 2), dtype);
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
        const auto written = [](int64_t n) {
          return Floats(static_cast<size_t>(n), std::numeric_limits<float>::quiet_NaN());
        };
        KernelCall call;
        call.attrs = {{"kn", kn}};
        set_epilogue(call.attrs, {.bias_grad = true});
        if (rows < weight[0]) call.attrs.set("first_row", first_row);
        call.in = {arg(x, dtype, {kRows, kIn}), arg(dy, dtype, {kRows, kOut})};
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
