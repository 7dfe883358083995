// Cases of adagrad: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include <cmath>

#include "tests/op_cases/op_cases.h"
#include "tests/op_cases/optimizer_cases.h"

namespace trainctl {
namespace {

using namespace naive;

/// out: weight, sum, (bf16 copy)
Outputs adagrad(const NaiveCall& call) {
  const double eps = call.attrs.number("eps", 1e-8), decay = call.attrs.number("weight_decay", 0);
  const double scale = clip_scale(call.in, call.attrs), rate = learning_rate(call.scalars, call.attrs);
  Outputs out = call.before;
  for (size_t i = 0; i < out[0].values.size(); ++i) {
    double &w = out[0].values[i], &sum = out[1].values[i];
    const double g = scale * call.in[0].values[i] + decay * w;
    sum += g * g;
    w -= rate * g / (std::sqrt(sum) + eps);
  }
  if (out.size() > 2) out.back().values = out[0].values;
  return out;
}

std::vector<KernelCase> adagrad_kernels() {
  std::vector<KernelCase> calls;
  for (const OptimizerCall& each : optimizer_calls()) {
    const Attrs attrs{{"weight_decay", each.weight_decay}, {"clip_norm", each.clip_norm}};
    calls.push_back(each.kernel_case("adagrad_update", {CaseOperand{.fill = CaseOperand::Fill::positive}}, attrs));
  }
  return calls;
}

}  // namespace

extern const OpCases adagrad_cases = {.kernels = adagrad_kernels(), .kernel_references = {{"adagrad_update", adagrad}}};

}  // namespace trainctl
