#include <cmath>

#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

Outputs layer_norm(const Inputs& in, const Attrs& attrs) {
  const int64_t n = in[0].shape.back(), rows = num_elements(in[0].shape) / n;
  const Shape leading(in[0].shape.begin(), in[0].shape.end() - 1);
  Outputs out{in[0], {leading, std::vector<double>(rows)}, {leading, std::vector<double>(rows)}};
  for (int64_t r = 0; r < rows; ++r) {
    double mean = 0, var = 0;
    for (int64_t i = 0; i < n; ++i) mean += in[0].values[r * n + i] / static_cast<double>(n);
    for (int64_t i = 0; i < n; ++i) var += std::pow(in[0].values[r * n + i] - mean, 2) / static_cast<double>(n);
    out[1].values[r] = mean;
    out[2].values[r] = 1.0 / std::sqrt(var + attrs.number("eps", 1e-5));
    for (int64_t i = 0; i < n; ++i) {
      const double xhat = (in[0].values[r * n + i] - mean) * out[2].values[r];
      out[0].values[r * n + i] = in.size() > 1 ? xhat * in[1].values[i] + in[2].values[i] : xhat;
    }
  }
  return out;
}

}  // namespace

extern const OpCases layer_norm_cases = {
    .rows = {{"layer_norm", {{{6, 7}}, {{7}}, {{7}}}, {{"eps", 1e-5}}, {{6, 7}, {6}, {6}}, 5e-6},
             {"layer_norm", {{{4, 3, 37}}, {{37}}, {{37}}}, {{"eps", 1e-5}}, {{4, 3, 37}, {4, 3}, {4, 3}}, 5e-6},
             {"layer_norm", {{{12, 8}}}, {{"eps", 1e-3}}, {{12, 8}, {12}, {12}}, 5e-6}},
    .references = {{"layer_norm", layer_norm}},
    .rules = {{{"layer_norm", {{{2, 3, 4}}}}, "abd->abd,ab,ab", "d", {{2, 3, 4}, {2, 3}, {2, 3}}},
              {{"layer_norm", {{{2, 4}}, {{4}}, {{4}}}}, "ad,d,d->ad,a,a", "d", {{2, 4}, {2}, {2}}}},
    .gradients = {{{"layer_norm", {{{2, 4}}}},
                   {"layer_norm_grad ad,ad,a,a->ad"},
                   "sums over d inside; d is uncuttable"},
                  {{"layer_norm", {{{2, 4}}, {{4}}, {{4}}}},
                   {"layer_norm_param_grad ad,ad,a,a->d,d sums a sums a", "layer_norm_grad ad,ad,a,a,d->ad"},
                   "gamma and beta are used in every row a"}},
    .shape_errors = {{{"layer_norm", {{{2, 3}}, {{2}}, {{3}}}}, "layer_norm: the weight is [2], expected [3]"}},
    .layers = {{"layer_norm", "", {8, 12}}, {"layer_norm", ", affine: false", {8, 12}}},
};

}  // namespace trainctl
