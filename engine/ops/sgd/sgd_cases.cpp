// Cases of sgd: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include "tests/op_cases/op_cases.h"
#include "tests/op_cases/optimizer_cases.h"

namespace trainctl {
namespace {

using namespace naive;

/// out: weight, (momentum), (bf16 copy)
Outputs sgd(const NaiveCall& call) {
  const double momentum = call.attrs.number("momentum", 0), decay = call.attrs.number("weight_decay", 0);
  const double scale = clip_scale(call.in, call.attrs), rate = learning_rate(call.scalars, call.attrs);
  Outputs out = call.before;
  for (size_t i = 0; i < out[0].values.size(); ++i) {
    double& w = out[0].values[i];
    const double g = scale * call.in[0].values[i] + decay * w;
    double step = g;
    if (momentum != 0) {
      double& m = out[1].values[i];
      m = momentum * m + g;
      step = call.attrs.flag("nesterov") ? g + momentum * m : m;
    }
    w -= rate * step;
  }
  if (out.size() > (momentum != 0 ? 2u : 1u)) out.back().values = out[0].values;
  return out;
}

std::vector<KernelCase> sgd_kernels() {
  std::vector<KernelCase> calls;
  for (const OptimizerCall& each : optimizer_calls()) {
    const Attrs plain{{"weight_decay", each.weight_decay}, {"clip_norm", each.clip_norm}};
    const Attrs momentum{
        {"momentum", 0.9}, {"nesterov", each.flag}, {"weight_decay", each.weight_decay}, {"clip_norm", each.clip_norm}};
    calls.push_back(each.kernel_case("sgd_update", {}, plain));
    calls.push_back(each.kernel_case("sgd_update", {CaseOperand{}}, momentum));
  }
  return calls;
}

}  // namespace

extern const OpCases sgd_cases = {.kernels = sgd_kernels(), .kernel_references = {{"sgd_update", sgd}}};

}  // namespace trainctl
