// Tests that kernels make no subnormal products of usual numbers. A product whose result is subnormal takes a hundred
// times longer than others, and the compiler once introduced such products into sigmoids (engine/CMakeLists.txt,
// kernel_options).
#include <doctest/doctest.h>

#include <cfenv>
#include <functional>
#include <string>
#include <vector>

#include "engine/ops/kernel.h"
#include "tests/op_cases/kernel_case_run.h"

namespace trainctl {
namespace {

/// Runs kernels on this thread, and records whether the result of any operation was subnormal.
class UnderflowDevice final : public CaseDevice {
 public:
  std::function<void()> prepare(const std::string& op, const KernelCall& call) const override {
    return [this, run = find_cpu_kernel(op)->prepare(call)] {
      std::feclearexcept(FE_UNDERFLOW);
      run();
      underflows = std::fetestexcept(FE_UNDERFLOW) != 0;
    };
  }
  mutable bool underflows = false;
};

bool underflows(const KernelCase& row) {
  const UnderflowDevice device;
  KernelCaseRun(row).on(device, false, 1);
  return device.underflows;
}

CaseOperand chosen_experts() {
  return {.shape = {30, 2}, .fill = CaseOperand::Fill::ids, .dtype = DType::i32, .number = 3};
}

Attrs attrs_of_experts(const char* function) {
  return {{"experts", int64_t{3}}, {"function", std::string(function)}, {"capacity", 3.0}, {"block", int64_t{1}}};
}

}  // namespace

TEST_CASE("functions of usual numbers have no subnormal numbers on their way") {
  for (const char* function : {"silu", "sigmoid", "gelu", "tanh"}) {
    CAPTURE(function);
    CHECK_FALSE(underflows({.kernel = function, .in = {{{300}}}, .out = {unwritten({300})}}));
  }
  CHECK_FALSE(underflows({.kernel = "silu_grad", .in = {{{300}}, {{300}}}, .out = {unwritten({300})}}));
}

TEST_CASE("experts of usual numbers have no subnormal numbers on their way") {
  const Shape tokens{30, 16}, pairs{30, 2}, kept{30, 3, 32, 4};
  const CaseOperand up{{3, 2, 32, 16}}, down{{3, 16, 32}};
  for (const char* function : {"swiglu", "clamped_swiglu", "geglu"}) {
    CAPTURE(function);
    const Attrs attrs = attrs_of_experts(function);
    CHECK_FALSE(underflows({.kernel = "experts",
                            .in = {{tokens}, {pairs}, chosen_experts(), up, down},
                            .out = {unwritten(tokens), unwritten(kept)},
                            .attrs = attrs}));
    CHECK_FALSE(underflows({.kernel = "experts_grad",
                            .in = {{tokens}, {tokens}, {pairs}, chosen_experts(), up, down, {kept}},
                            .out = {unwritten(tokens), unwritten(pairs), unwritten(up.shape), unwritten(down.shape)},
                            .attrs = attrs}));
  }
}

TEST_CASE("keys that rows do not see make no subnormal numbers") {
  const Shape x{2, 40, 48}, out{2, 40, 16}, logs{2, 1, 1, 40};
  const Attrs attrs{{"head_dim", int64_t{16}}, {"group", int64_t{1}}, {"causal", true}, {"scale", 0.25}};
  const auto logs_of_sums = CaseOperand{.shape = logs, .fill = CaseOperand::Fill::number, .number = 3};
  CHECK_FALSE(
      underflows({.kernel = "attention", .in = {{x}}, .out = {unwritten(out), unwritten(logs)}, .attrs = attrs}));
  CHECK_FALSE(underflows(
      {.kernel = "attention_grad", .in = {{out}, {x}, {out}, logs_of_sums}, .out = {unwritten(x)}, .attrs = attrs}));
}

}  // namespace trainctl
