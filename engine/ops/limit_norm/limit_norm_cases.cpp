// Cases of limit_norm: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

/// out: squared norm, ring
naive::Outputs limit_norm(const NaiveCall& call) {
  naive::Outputs out = call.before;
  std::vector<double>& ring = out[1].values;
  const auto count = static_cast<size_t>(ring[0]), window = ring.size() - 2;
  std::vector<double> norms(ring.begin() + 2, ring.begin() + 2 + static_cast<std::ptrdiff_t>(count));
  std::sort(norms.begin(), norms.end());
  double usual = 0;
  if (count > 0 && call.attrs.flag("mean"))
    usual = std::accumulate(norms.begin(), norms.end(), 0.0) / static_cast<double>(count);
  else if (count > 0)
    usual = (norms[(count - 1) / 2] + norms[count / 2]) / 2;
  double& squared = out[0].values[0];
  if (!std::isfinite(squared)) return out;
  if (ring[0] >= static_cast<double>(call.attrs.integer("least")) && usual > 0 &&
      std::sqrt(squared) > call.attrs.number("limit") * usual) {
    squared = std::numeric_limits<double>::infinity();
    return out;
  }
  const auto next = static_cast<size_t>(ring[1]);
  ring[2 + next] = std::sqrt(squared);
  ring[1] = static_cast<double>((next + 1) % window);
  ring[0] = std::min(ring[0] + 1, static_cast<double>(window));
  return out;
}

/// Cases in which no norm exceeds the limit, because infinite results cannot be compared
/// (tests/equivalence/torch/stability.py tests those). A case fills all elements of the state with one number between 2
/// and 5, which is thus every norm, their count and the place of the next norm.
std::vector<KernelCase> limit_norm_kernels() {
  using Fill = CaseOperand::Fill;
  std::vector<KernelCase> calls;
  for (const double filled : {2.0, 5.0})
    for (const double squared : {1.0, 100.0})
      for (const bool mean : {false, true})
        calls.push_back({"limit_norm",
                         {},
                         {{.shape = {1}, .fill = Fill::number, .number = squared},
                          {.shape = {9}, .fill = Fill::number, .number = filled}},
                         {{"limit", 10.0}, {"least", int64_t{2}}, {"mean", mean}},
                         1e-6});
  return calls;
}

}  // namespace

extern const OpCases limit_norm_cases = {.kernels = limit_norm_kernels(),
                                         .kernel_references = {{"limit_norm", limit_norm}}};

}  // namespace trainctl
