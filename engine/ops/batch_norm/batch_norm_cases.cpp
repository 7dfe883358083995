#include <cmath>
#include <functional>

#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

/// out[c] = sum of f(element, feature) / count; the features are in attr dim.
Tensor64 mean_per_feature(const Tensor64& x, const Attrs& attrs, const std::function<double(double, int64_t)>& f) {
  const auto dim = static_cast<size_t>(attrs.integer("dim", 1));
  Tensor64 out = zeros({x.shape[dim]});
  for (int64_t i = 0; i < num_elements(x.shape); ++i) {
    const int64_t c = index_of(x.shape, i)[dim];
    out.values[c] += f(x.values[i], c) / attrs.number("count");
  }
  return out;
}

Outputs mean(const Inputs& in, const Attrs& attrs) {
  return {mean_per_feature(in[0], attrs, [](double x, int64_t) { return x; })};
}

Outputs var(const Inputs& in, const Attrs& attrs) {
  return {mean_per_feature(in[0], attrs, [&](double x, int64_t c) { return std::pow(x - in[1].values[c], 2); })};
}

Outputs normalised(const Inputs& in, const Attrs& attrs) {
  return {make(in[0].shape, [&](const Index& i) {
    const int64_t c = i[static_cast<size_t>(attrs.integer("dim", 1))];
    const double xhat = (at(in[0], i) - in[1].values[c]) / std::sqrt(in[2].values[c] + attrs.number("eps"));
    return in.size() > 3 ? xhat * in[3].values[c] + in[4].values[c] : xhat;
  })};
}

/// (x[, gamma, beta]) -> mean, var, y: as model/ lowers a batch_norm layer.
void build_batch_norm(LayerBuilder& layer, const std::vector<TensorId>& in, const Attrs& attrs) {
  const TensorId mean = layer.emit("batch_norm_mean", {in[0]}, attrs, "mean")[0];
  const TensorId var = layer.emit("batch_norm_var", {in[0], mean}, attrs, "var")[0];
  const int64_t features = layer.shape(mean)[0];
  const TensorId running_mean = layer.state("running_mean", {features}, 0.0);
  const TensorId running_var = layer.state("running_var", {features}, 1.0);
  layer.emit("batch_norm_running", {mean, var, running_mean, running_var}, attrs, "running");
  std::vector<TensorId> inputs = {in[0], mean, var};
  inputs.insert(inputs.end(), in.begin() + 1, in.end());
  layer.emit("batch_norm", inputs, attrs);
}

}  // namespace

OpCase batch_norm_case(Shape x, bool affine, int64_t dim) {
  const int64_t features = x[static_cast<size_t>(dim)];
  Attrs attrs{{"dim", dim}, {"eps", 1e-5}, {"momentum", 0.1}, {"count", num_elements(x) / features}};
  OpCase c{"batch_norm", {{x}}, attrs, {x}, 5e-6, build_batch_norm};
  if (affine) c.inputs.insert(c.inputs.end(), {{{features}}, {{features}}});
  return c;
}

extern const OpCases batch_norm_cases = {
    .rows = {batch_norm_case({12, 4}, true), batch_norm_case({6, 5}, false), batch_norm_case({4, 6, 3, 2}, true),
             batch_norm_case({6, 2, 17}, true), batch_norm_case({4, 1, 5}, false),
             batch_norm_case({4, 3, 2, 6}, true, 3), batch_norm_case({2, 3, 17}, false, 2),
             batch_norm_case({2, 3, 4, 5}, true, 2), batch_norm_case({6, 3, 5}, true, 0)},
    .references = {{"batch_norm_mean", mean},
                   {"batch_norm_var", var},
                   {"batch_norm", normalised},
                   {"batch_norm_running", [](const Inputs&, const Attrs&) { return Outputs{}; }}},
    // Batch statistics are partial sums if the batch is cut.
    .rules =
        {{{"batch_norm_mean", {{{2, 3, 4, 5}}}}, "ncab->c", "", {{3}}},
         {{"batch_norm_var", {{{2, 3}}, {{3}}}}, "nc,c->c", "", {{3}}},
         {{"batch_norm_var", {{{2, 3, 4, 5}}, {{5}}}, {{"dim", int64_t{3}}}}, "nabc,c->c", "", {{5}}},
         {{"batch_norm_running", {{{3}}, {{3}}, {{3}}, {{3}}}}, "c,c,c,c->", "", {}},
         {{"batch_norm", {{{2, 3}}, {{3}}, {{3}}}}, "nc,c,c->nc", "", {{2, 3}}},
         {{"batch_norm", {{{2, 4, 5, 3}}, {{3}}, {{3}}}, {{"dim", int64_t{3}}}}, "nabc,c,c->nabc", "", {{2, 4, 5, 3}}},
         {{"batch_norm", {{{2, 3, 4}}, {{3}}, {{3}}, {{3}}, {{3}}}}, "nca,c,c,c,c->nca", "", {{2, 3, 4}}}},
    .gradients =
        {{{"batch_norm", {{{2, 3, 4}}, {{3}}, {{3}}}},
          {"batch_norm_grad_stats nca,nca,c,c->c,c sums na sums na", "batch_norm_grad nca,nca,c,c,c,c->nca"},
          "the sums come out partial over a cut batch; batch_norm_grad reads them whole, so they are reduced between; "
          "then dx is element by element"},
         {{"batch_norm", {{{2, 3}}, {{3}}, {{3}}, {{3}}, {{3}}}},
          {"batch_norm_grad_stats nc,nc,c,c->c,c sums n sums n", "batch_norm_grad nc,nc,c,c,c,c,c->nc"},
          "the same, and the sums are the gradients of beta and gamma"}},
    .shape_errors = {{{"batch_norm_mean", {{{2, 3}}}, {{"dim", int64_t{2}}}},
                      "batch_norm_mean: dim 2 is not a dim of [2, 3]"},
                     {{"batch_norm_mean", {{{2}}}}, "batch_norm_mean needs an input of at least 2 dims, but got [2]"}},
    .layers = {{"batch_norm", ", affine: false", {8, 12}},
               {"batch_norm", "", {8, 12}},
               {"batch_norm", ", dim: -1", {8, 12}}},
};

}  // namespace trainctl
