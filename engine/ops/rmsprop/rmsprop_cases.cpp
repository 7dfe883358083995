// Cases of rmsprop: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include <algorithm>
#include <cmath>

#include "tests/op_cases/op_cases.h"
#include "tests/op_cases/optimizer_cases.h"

namespace trainctl {
namespace {

using namespace naive;

/// out: weight, square_avg, (momentum), (grad_avg), (bf16 copy)
Outputs rmsprop(const NaiveCall& call) {
  const double alpha = call.attrs.number("alpha", 0.99), eps = call.attrs.number("eps", 1e-8);
  const double decay = call.attrs.number("weight_decay", 0), momentum = call.attrs.number("momentum", 0);
  const bool centered = call.attrs.flag("centered");
  const double scale = clip_scale(call.in, call.attrs), rate = learning_rate(call.scalars, call.attrs);
  const size_t states = 1 + (momentum != 0 ? 1 : 0) + (centered ? 1 : 0);
  Outputs out = call.before;
  for (size_t i = 0; i < out[0].values.size(); ++i) {
    double &w = out[0].values[i], &square = out[1].values[i];
    const double g = scale * call.in[0].values[i] + decay * w;
    square = alpha * square + (1 - alpha) * g * g;
    double variance = square;
    if (centered) {
      double& mean = out[states].values[i];
      mean = alpha * mean + (1 - alpha) * g;
      variance = std::max(0.0, variance - mean * mean);
    }
    double change = g / (std::sqrt(variance) + eps);
    if (momentum != 0) change = out[2].values[i] = momentum * out[2].values[i] + change;
    w -= rate * change;
  }
  if (out.size() > 1 + states) out.back().values = out[0].values;
  return out;
}

/// The variance does not cancel: means are small, and squares are not.
std::vector<KernelCase> rmsprop_kernels() {
  std::vector<KernelCase> calls;
  for (const OptimizerCall& each : optimizer_calls()) {
    const CaseOperand squares{.fill = CaseOperand::Fill::positive};
    const CaseOperand large{.fill = CaseOperand::Fill::number, .number = 0.5};
    const CaseOperand mean{.fill = CaseOperand::Fill::number, .number = 1e-3};
    Attrs attrs{{"weight_decay", each.weight_decay}, {"clip_norm", each.clip_norm}};
    calls.push_back(each.kernel_case("rmsprop_update", {squares}, attrs));
    if (!each.flag) continue;
    attrs.set("momentum", 0.9);
    calls.push_back(each.kernel_case("rmsprop_update", {squares, CaseOperand{}}, attrs));
    attrs.set("centered", true);
    calls.push_back(each.kernel_case("rmsprop_update", {large, CaseOperand{}, mean}, attrs));
    attrs.set("momentum", 0.0);
    calls.push_back(each.kernel_case("rmsprop_update", {large, mean}, attrs));
  }
  return calls;
}

}  // namespace

extern const OpCases rmsprop_cases = {.kernels = rmsprop_kernels(), .kernel_references = {{"rmsprop_update", rmsprop}}};

}  // namespace trainctl
