// Cases of nadam: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include <cmath>

#include "tests/op_cases/op_cases.h"
#include "tests/op_cases/optimizer_cases.h"

namespace trainctl {
namespace {

using namespace naive;

/// out: weight, m, v, (bf16 copy)
Outputs nadam(const NaiveCall& call) {
  const double beta1 = call.attrs.number("beta1", 0.9), beta2 = call.attrs.number("beta2", 0.999);
  const double eps = call.attrs.number("eps", 1e-8), decay = call.attrs.number("weight_decay", 0);
  const double scale = clip_scale(call.in, call.attrs), rate = learning_rate(call.scalars, call.attrs);
  const auto mu = [&](double t) {
    return beta1 * (1 - 0.5 * std::pow(0.96, t * call.attrs.number("momentum_decay", 0.004)));
  };
  const double t = call.scalars.step + 1.0, product = 1 - double{call.scalars.adam_bias1};
  Outputs out = call.before;
  for (size_t i = 0; i < out[0].values.size(); ++i) {
    double &w = out[0].values[i], &m = out[1].values[i], &v = out[2].values[i];
    double g = scale * call.in[0].values[i];
    if (call.attrs.flag("decoupled")) {
      w *= 1 - rate * decay;
    } else {
      g += decay * w;
    }
    m = beta1 * m + (1 - beta1) * g;
    v = beta2 * v + (1 - beta2) * g * g;
    const double of_root = std::sqrt(v / double{call.scalars.adam_bias2}) + eps;
    w -= rate * ((1 - mu(t)) / (1 - product) * g + mu(t + 1) / (1 - product * mu(t + 1)) * m) / of_root;
  }
  if (out.size() > 3) out.back().values = out[0].values;
  return out;
}

std::vector<KernelCase> nadam_kernels() {
  std::vector<KernelCase> calls;
  for (const OptimizerCall& each : optimizer_calls()) {
    const Attrs attrs{{"weight_decay", each.weight_decay}, {"decoupled", each.flag}, {"clip_norm", each.clip_norm}};
    calls.push_back(
        each.kernel_case("nadam_update", {CaseOperand{}, CaseOperand{.fill = CaseOperand::Fill::positive}}, attrs));
  }
  return calls;
}

}  // namespace

extern const OpCases nadam_cases = {.kernels = nadam_kernels(), .kernel_references = {{"nadam_update", nadam}}};

}  // namespace trainctl
