// Cases of group_norm: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include <cmath>

#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

/// y, and the mean and inverse standard deviation of each group.
Outputs group_norm(const Inputs& in, const Attrs& attrs) {
  const Tensor64& x = in[0];
  const int64_t groups = attrs.integer("groups"), channels = x.shape[1], of_group = channels / groups;
  const double count = static_cast<double>(num_elements(x.shape)) / static_cast<double>(x.shape[0] * groups);
  Outputs out{x, zeros({x.shape[0], groups}), zeros({x.shape[0], groups})};
  const auto group_of = [&](int64_t i) {
    const Index index = index_of(x.shape, i);
    return index[0] * groups + index[1] / of_group;
  };
  for (int64_t i = 0; i < num_elements(x.shape); ++i) out[1].values[group_of(i)] += x.values[i] / count;
  Tensor64 var = zeros(out[1].shape);
  for (int64_t i = 0; i < num_elements(x.shape); ++i)
    var.values[group_of(i)] += std::pow(x.values[i] - out[1].values[group_of(i)], 2) / count;
  for (size_t g = 0; g < var.values.size(); ++g)
    out[2].values[g] = 1.0 / std::sqrt(var.values[g] + attrs.number("eps", 1e-5));
  for (int64_t i = 0; i < num_elements(x.shape); ++i) {
    const int64_t channel = index_of(x.shape, i)[1];
    const double xhat = (x.values[i] - out[1].values[group_of(i)]) * out[2].values[group_of(i)];
    out[0].values[i] = in.size() > 1 ? xhat * in[1].values[channel] + in[2].values[channel] : xhat;
  }
  return out;
}

Attrs groups(int64_t count, double eps = 1e-5) { return {{"groups", count}, {"eps", eps}}; }

}  // namespace

extern const OpCases group_norm_cases = {
    .rows = {{"group_norm", {{{6, 12}}, {{12}}, {{12}}}, groups(3), {{6, 12}, {6, 3}, {6, 3}}, 5e-6},
             {"group_norm", {{{4, 6, 3, 5}}, {{6}}, {{6}}}, groups(2), {{4, 6, 3, 5}, {4, 2}, {4, 2}}, 5e-6},
             {"group_norm", {{{2, 4, 17}}, {{4}}, {{4}}}, groups(1), {{2, 4, 17}, {2, 1}, {2, 1}}, 5e-6},
             {"group_norm", {{{3, 5, 7}}, {{5}}, {{5}}}, groups(5), {{3, 5, 7}, {3, 5}, {3, 5}}, 5e-6},
             {"group_norm", {{{4, 1, 2, 3, 2}}, {{1}}, {{1}}}, groups(1), {{4, 1, 2, 3, 2}, {4, 1}, {4, 1}}, 5e-6},
             {"group_norm", {{{2, 8, 4, 4}}}, groups(4, 1e-3), {{2, 8, 4, 4}, {2, 4}, {2, 4}}, 5e-6}},
    .references = {{"group_norm", group_norm}},
    .rules =
        {{{"group_norm", {{{2, 6, 4, 5}}}, groups(3)}, "n(gk)ab->n(gk)ab,ng,ng", "kab", {{2, 6, 4, 5}, {2, 3}, {2, 3}}},
         {{"group_norm", {{{2, 6}}, {{6}}, {{6}}}, groups(2)},
          "n(gk),(gk),(gk)->n(gk),ng,ng",
          "k",
          {{2, 6}, {2, 2}, {2, 2}}}},
    .gradients = {{{"group_norm", {{{2, 6, 4}}}, groups(3)},
                   {"group_norm_grad n(gk)a,n(gk)a,ng,ng->n(gk)a"},
                   "it sums over k and a, which are uncuttable"},
                  {{"group_norm", {{{2, 6, 4}}, {{6}}, {{6}}}, groups(3)},
                   {"group_norm_param_grad n(gk)a,n(gk)a,ng,ng->(gk),(gk) sums na sums na",
                    "group_norm_grad n(gk)a,n(gk)a,ng,ng,(gk)->n(gk)a"},
                   "gamma and beta of a channel are used in every sample n and element a",
                   "a"}},
    .shape_errors = {{{"group_norm", {{{2, 6}}}, groups(4)},
                      "group_norm: the 6 channels in dim 1 of [2, 6] cannot be divided evenly into 4 groups"},
                     {{"group_norm", {{{2, 6}}, {{2}}, {{6}}}, groups(2)},
                      "group_norm: the weight is [2], expected [6]"}},
    .layers = {{"group_norm", ", groups: 3", {8, 12}},
               {"group_norm", ", groups: 4, affine: false", {8, 12}},
               {"instance_norm", "", {8, 3, 4, 3}, false, {3, 4, 3}},
               {"instance_norm", ", affine: true", {8, 3, 4, 3}, false, {3, 4, 3}}},
};

}  // namespace trainctl
