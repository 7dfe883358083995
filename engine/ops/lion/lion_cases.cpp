// Cases of lion: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include "tests/op_cases/op_cases.h"
#include "tests/op_cases/optimizer_cases.h"

namespace trainctl {
namespace {

using namespace naive;

/// out: weight, m, (bf16 copy)
Outputs lion(const NaiveCall& call) {
  const double beta1 = call.attrs.number("beta1", 0.9), beta2 = call.attrs.number("beta2", 0.99);
  const double decay = call.attrs.number("weight_decay", 0);
  const double scale = clip_scale(call.in, call.attrs), rate = learning_rate(call.scalars, call.attrs);
  Outputs out = call.before;
  for (size_t i = 0; i < out[0].values.size(); ++i) {
    double &w = out[0].values[i], &m = out[1].values[i];
    const double g = scale * call.in[0].values[i], ahead = beta1 * m + (1 - beta1) * g;
    w = w * (1 - rate * decay) - rate * (ahead > 0 ? 1 : ahead < 0 ? -1 : 0);
    m = beta2 * m + (1 - beta2) * g;
  }
  if (out.size() > 2) out.back().values = out[0].values;
  return out;
}

std::vector<KernelCase> lion_kernels() {
  std::vector<KernelCase> calls;
  for (const OptimizerCall& each : optimizer_calls()) {
    const Attrs attrs{{"weight_decay", each.weight_decay}, {"clip_norm", each.clip_norm}};
    calls.push_back(each.kernel_case("lion_update", {CaseOperand{}}, attrs));
  }
  return calls;
}

}  // namespace

extern const OpCases lion_cases = {.kernels = lion_kernels(), .kernel_references = {{"lion_update", lion}}};

}  // namespace trainctl
