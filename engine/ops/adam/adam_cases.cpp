// Cases of adam: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include <algorithm>
#include <cmath>

#include "tests/op_cases/op_cases.h"
#include "tests/op_cases/optimizer_cases.h"

namespace trainctl {
namespace {

using namespace naive;

/// out: weight, m, v, (max_v), (bf16 copy)
Outputs adam(const NaiveCall& call) {
  const double beta1 = call.attrs.number("beta1", 0.9), beta2 = call.attrs.number("beta2", 0.999);
  const double eps = call.attrs.number("eps", 1e-8), decay = call.attrs.number("weight_decay", 0);
  const bool amsgrad = call.attrs.flag("amsgrad");
  const double scale = clip_scale(call.in, call.attrs), rate = learning_rate(call.scalars, call.attrs);
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
    double second = v;
    if (amsgrad) second = out[3].values[i] = std::max(out[3].values[i], v);
    w -= rate / double{call.scalars.adam_bias1} * m /
         (std::sqrt(second) / std::sqrt(double{call.scalars.adam_bias2}) + eps);
  }
  if (out.size() > (amsgrad ? 4 : 3)) out.back().values = out[0].values;
  return out;
}

std::vector<KernelCase> adam_kernels() {
  std::vector<KernelCase> calls;
  for (const OptimizerCall& each : optimizer_calls()) {
    const CaseOperand positive{.fill = CaseOperand::Fill::positive};
    Attrs attrs{{"weight_decay", each.weight_decay}, {"decoupled", each.flag}, {"clip_norm", each.clip_norm}};
    calls.push_back(each.kernel_case("adam_update", {CaseOperand{}, positive}, attrs));
    attrs.set("amsgrad", true);
    calls.push_back(each.kernel_case("adam_update", {CaseOperand{}, positive, positive}, attrs));
  }
  return calls;
}

}  // namespace

extern const OpCases adam_cases = {.kernels = adam_kernels(), .kernel_references = {{"adam_update", adam}}};

}  // namespace trainctl
