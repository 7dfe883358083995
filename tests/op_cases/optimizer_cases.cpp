// Makes the calls that the update kernel of every optimizer must pass.
#include "tests/op_cases/optimizer_cases.h"

namespace trainctl {

KernelCase OptimizerCall::kernel_case(const char* kernel, const std::vector<CaseOperand>& states,
                                      const Attrs& attrs) const {
  const CaseOperand squared_norm{.shape = {1}, .fill = CaseOperand::Fill::number, .number = 9};
  // A bf16 copy may round to the other neighbour.
  KernelCase call{kernel,
                  {{.shape = {n}, .dtype = gradient}, squared_norm},
                  {{{n}}},
                  attrs,
                  copy ? 1e-2 : 2e-6,
                  {.learning_rate = 0.1f, .adam_bias1 = 0.3f, .adam_bias2 = 0.01f}};
  if (flag) call.attrs.set("learning_rate_scale", 0.3);
  for (CaseOperand state : states) {
    state.shape = {n};
    call.out.push_back(state);
  }
  if (copy) call.out.push_back(unwritten({n}, DType::bf16));
  call.f32_on_cpu = gradient == DType::bf16;
  return call;
}

/// All combinations of sizes and settings that change how a kernel runs.
std::vector<OptimizerCall> optimizer_calls() {
  std::vector<OptimizerCall> calls;
  for (const int64_t n : {1, 7, 37, 4096, 70001}) {
    for (int bits = 0; bits < 32; ++bits) {
      const auto bit = [bits](int i) { return (bits >> i & 1) != 0; };
      const OptimizerCall call{.n = n,
                               .copy = bit(0),
                               .clip_norm = bit(1) ? 1.5 : 0.0,
                               .weight_decay = bit(2) ? 0.01 : 0.0,
                               .flag = bit(3),
                               .gradient = bit(4) ? DType::bf16 : DType::f32};
      // The CPU does not round where f32 stands in for bf16.
      if (call.gradient == DType::bf16 && call.copy) continue;
      calls.push_back(call);
    }
  }
  return calls;
}

std::vector<Ints> two_parameters(int64_t n) {
  if (n < 3) return {{0, 1, n}};
  const int64_t first = n / 3;
  return {{0, 1, first, first, 1, n - first}};
}

void for_each_parameter(const Attrs& attrs, const std::function<void(size_t, size_t)>& each) {
  const Ints list = attrs.int_lists("parameters").at(0);
  for (size_t i = 0; i + 2 < list.size(); i += 3)
    each(static_cast<size_t>(list[i]), static_cast<size_t>(list[i] + list[i + 1] * list[i + 2]));
}

}  // namespace trainctl
