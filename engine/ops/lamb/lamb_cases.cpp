// Cases of lamb: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include <cmath>

#include "tests/op_cases/op_cases.h"
#include "tests/op_cases/optimizer_cases.h"

namespace trainctl {
namespace {

using namespace naive;

/// out: weight, m, v, (bf16 copy)
Outputs lamb(const NaiveCall& call) {
  const double beta1 = call.attrs.number("beta1"), beta2 = call.attrs.number("beta2"), eps = call.attrs.number("eps");
  const double decay = call.attrs.number("weight_decay"), scale = clip_scale(call.in, call.attrs);
  const double rate = learning_rate(call.scalars, call.attrs);
  Outputs out = call.before;
  for_each_parameter(call.attrs, [&](size_t begin, size_t end) {
    double weights = 0, directions = 0;
    std::vector<double> u;
    for (size_t i = begin; i < end; ++i) {
      const double g = scale * call.in[0].values[i];
      double &m = out[1].values[i], &v = out[2].values[i];
      m = beta1 * m + (1 - beta1) * g;
      v = beta2 * v + (1 - beta2) * g * g;
      u.push_back(m / call.scalars.adam_bias1 / (std::sqrt(v / call.scalars.adam_bias2) + eps) +
                  decay * out[0].values[i]);
      weights += out[0].values[i] * out[0].values[i];
      directions += u.back() * u.back();
    }
    const double ratio = call.attrs.flag("adapt", true) ? std::sqrt(weights / directions) : 1;
    for (size_t i = begin; i < end; ++i) out[0].values[i] -= rate * ratio * u[i - begin];
  });
  if (out.size() > 3) out.back().values = out[0].values;
  return out;
}

std::vector<KernelCase> lamb_kernels() {
  std::vector<KernelCase> calls;
  for (const OptimizerCall& each : optimizer_calls()) {
    const CaseOperand moment{.fill = CaseOperand::Fill::positive};
    const Attrs attrs{{"beta1", 0.9},
                      {"beta2", 0.999},
                      {"eps", 1e-3},
                      {"weight_decay", each.weight_decay},
                      {"clip_norm", each.clip_norm},
                      {"adapt", each.n != 37},
                      {"parameters", two_parameters(each.n)}};
    calls.push_back(each.kernel_case("lamb_update", {moment, moment}, attrs));
    calls.back().tolerance = each.copy ? 1e-2 : 1e-5;
  }
  return calls;
}

}  // namespace

extern const OpCases lamb_cases = {.kernels = lamb_kernels(), .kernel_references = {{"lamb_update", lamb}}};

}  // namespace trainctl
