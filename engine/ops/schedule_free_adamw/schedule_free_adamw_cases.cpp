// Cases of schedule_free_adamw: its kernels in double precision, and the shapes, sharding rules, gradients and errors
// to expect.
#include <cmath>

#include "tests/op_cases/op_cases.h"
#include "tests/op_cases/optimizer_cases.h"

namespace trainctl {
namespace {

using namespace naive;

/// out: weight, z, v, average, (bf16 copy)
Outputs schedule_free_adamw(const NaiveCall& call) {
  const double beta1 = call.attrs.number("beta1"), beta2 = call.attrs.number("beta2"), eps = call.attrs.number("eps");
  const double decay = call.attrs.number("weight_decay"), share = call.scalars.average_rate;
  const double scale = clip_scale(call.in, call.attrs), rate = learning_rate(call.scalars, call.attrs);
  Outputs out = call.before;
  for (size_t i = 0; i < out[0].values.size(); ++i) {
    double &y = out[0].values[i], &z = out[1].values[i], &v = out[2].values[i], &x = out[3].values[i];
    const double g = scale * call.in[0].values[i];
    if (share == 1) z = y;
    v = beta2 * v + (1 - beta2) * g * g;
    const double d = g / (std::sqrt(v / call.scalars.adam_bias2) + eps) + decay * y;
    z -= rate * d;
    x = (1 - share) * x + share * z;
    y = beta1 * x + (1 - beta1) * z;
  }
  if (out.size() > 4) out.back().values = out[0].values;
  return out;
}

std::vector<KernelCase> schedule_free_adamw_kernels() {
  std::vector<KernelCase> calls;
  for (const OptimizerCall& each : optimizer_calls()) {
    const CaseOperand moment{.fill = CaseOperand::Fill::positive};
    const Attrs attrs{{"beta1", 0.9},
                      {"beta2", 0.999},
                      {"eps", 1e-3},
                      {"weight_decay", each.weight_decay},
                      {"clip_norm", each.clip_norm}};
    calls.push_back(each.kernel_case("schedule_free_adamw_update", {CaseOperand{}, moment, CaseOperand{}}, attrs));
    calls.back().scalars.average_rate = each.flag ? 0.25f : 1.0f;
  }
  return calls;
}

}  // namespace

extern const OpCases schedule_free_adamw_cases = {
    .kernels = schedule_free_adamw_kernels(),
    .kernel_references = {{"schedule_free_adamw_update", schedule_free_adamw}}};

}  // namespace trainctl
