#include <cmath>

#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

Outputs rms_norm(const Inputs& in, const Attrs& attrs) {
  const int64_t n = in[0].shape.back(), rows = num_elements(in[0].shape) / n;
  Outputs out{in[0], zeros(Shape(in[0].shape.begin(), in[0].shape.end() - 1))};
  for (int64_t r = 0; r < rows; ++r) {
    double squares = 0;
    for (int64_t i = 0; i < n; ++i) squares += in[0].values[r * n + i] * in[0].values[r * n + i];
    const double rstd = out[1].values[r] =
        1.0 / std::sqrt(squares / static_cast<double>(n) + attrs.number("eps", 1e-5));
    for (int64_t i = 0; i < n; ++i)
      out[0].values[r * n + i] = in[0].values[r * n + i] * rstd * (in.size() > 1 ? in[1].values[i] : 1.0);
  }
  return out;
}

}  // namespace

extern const OpCases rms_norm_cases = {
    .rows = {{"rms_norm", {{{6, 7}}, {{7}}}, {{"eps", 1e-5}}, {{6, 7}, {6}}, 5e-6},
             {"rms_norm", {{{4, 3, 37}}, {{37}}}, {{"eps", 1e-6}}, {{4, 3, 37}, {4, 3}}, 5e-6},
             {"rms_norm", {{{3, 1}}, {{1}}}, {{"eps", 1e-2}}, {{3, 1}, {3}}, 5e-6},
             {"rms_norm", {{{1, 130}}, {{130}}}, {{"eps", 1e-5}}, {{1, 130}, {1}}, 5e-6},
             {"rms_norm", {{{12, 8}}}, {{"eps", 1e-3}}, {{12, 8}, {12}}, 5e-6}},
    .references = {{"rms_norm", rms_norm}},
    .rules = {{{"rms_norm", {{{2, 3, 4}}}}, "abd->abd,ab", "d", {{2, 3, 4}, {2, 3}}},
              {{"rms_norm", {{{2, 4}}, {{4}}}}, "ad,d->ad,a", "d", {{2, 4}, {2}}}},
    .gradients = {{{"rms_norm", {{{2, 4}}}}, {"rms_norm_grad ad,ad,a->ad"}, "sums over d inside; d is uncuttable"},
                  {{"rms_norm", {{{2, 4}}, {{4}}}},
                   {"rms_norm_param_grad ad,ad,a->d sums a", "rms_norm_grad ad,ad,a,d->ad"},
                   "gamma is used in every row a"}},
    .shape_errors = {{{"rms_norm", {{{2, 3}}, {{2}}}}, "rms_norm: the weight is [2], expected [3]"}},
    .layers = {{"rms_norm", "", {8, 12}}, {"rms_norm", ", affine: false, eps: 1e-6", {8, 12}}},
};

}  // namespace trainctl
