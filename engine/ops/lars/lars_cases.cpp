// Cases of lars: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include <cmath>

#include "tests/op_cases/op_cases.h"
#include "tests/op_cases/optimizer_cases.h"

namespace trainctl {
namespace {

using namespace naive;

/// out: weight, momentum, (bf16 copy)
Outputs lars(const NaiveCall& call) {
  const double momentum = call.attrs.number("momentum"), decay = call.attrs.number("weight_decay");
  const double scale = clip_scale(call.in, call.attrs), rate = learning_rate(call.scalars, call.attrs);
  Outputs out = call.before;
  for_each_parameter(call.attrs, [&](size_t begin, size_t end) {
    double weights = 0, gradients = 0;
    for (size_t i = begin; i < end; ++i) {
      weights += out[0].values[i] * out[0].values[i];
      gradients += scale * call.in[0].values[i] * scale * call.in[0].values[i];
    }
    const double ratio = call.attrs.flag("adapt", true) ? call.attrs.number("trust_coefficient") * std::sqrt(weights) /
                                                              (std::sqrt(gradients) + decay * std::sqrt(weights))
                                                        : 1;
    for (size_t i = begin; i < end; ++i) {
      double &w = out[0].values[i], &buffer = out[1].values[i];
      const double d = ratio * (scale * call.in[0].values[i] + decay * w);
      buffer = momentum * buffer + d;
      w -= rate * (call.attrs.flag("nesterov") ? d + momentum * buffer : buffer);
    }
  });
  if (out.size() > 2) out.back().values = out[0].values;
  return out;
}

std::vector<KernelCase> lars_kernels() {
  std::vector<KernelCase> calls;
  for (const OptimizerCall& each : optimizer_calls()) {
    const Attrs attrs{{"momentum", 0.9},
                      {"nesterov", each.flag},
                      {"trust_coefficient", 0.1},
                      {"weight_decay", each.weight_decay},
                      {"clip_norm", each.clip_norm},
                      {"adapt", each.n != 37},
                      {"parameters", two_parameters(each.n)}};
    calls.push_back(each.kernel_case("lars_update", {CaseOperand{}}, attrs));
    calls.back().tolerance = each.copy ? 1e-2 : 1e-5;
  }
  return calls;
}

}  // namespace

extern const OpCases lars_cases = {.kernels = lars_kernels(), .kernel_references = {{"lars_update", lars}}};

}  // namespace trainctl
