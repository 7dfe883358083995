// Cases of batch_norm: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "engine/ops/epilogue.h"
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

// Kernels that only compiled programs run: both statistics at once, and kernels with fused operations.

Outputs mean_and_var(const NaiveCall& call) {
  const Tensor64 means = mean(call.in, call.attrs)[0];
  return {means, var({call.in[0], means}, call.attrs)[0]};
}

/// The mean and the variance of each feature, from those of the equal parts of the batch [parts, 2, features].
Outputs merged_statistics(const NaiveCall& call) {
  const Tensor64& parts = call.in[0];
  const int64_t count = parts.shape[0], features = parts.shape[2];
  const auto of_part = [&](int64_t p, int64_t which, int64_t c) {
    return parts.values[(2 * p + which) * features + c];
  };
  Outputs out = {zeros({features}), zeros({features})};
  for (int64_t c = 0; c < features; ++c) {
    for (int64_t p = 0; p < count; ++p) out[0].values[c] += of_part(p, 0, c) / static_cast<double>(count);
    for (int64_t p = 0; p < count; ++p)
      out[1].values[c] +=
          (of_part(p, 1, c) + std::pow(of_part(p, 0, c) - out[0].values[c], 2)) / static_cast<double>(count);
  }
  return out;
}

Outputs fused(const NaiveCall& call) {
  const Epilogue epilogue = epilogue_of(call.attrs);
  Inputs in = call.in;
  if (epilogue.residual) in.pop_back();
  Outputs out = normalised(in, call.attrs);
  for (size_t i = 0; i < out[0].values.size(); ++i) {
    double& y = out[0].values[i];
    if (epilogue.residual) y += call.in.back().values[i];
    if (epilogue.activation == Activation::relu) y = std::max(y, 0.0);
  }
  return out;
}

/// dy where the relu of the forward kernel passed its input on, 0 elsewhere. The inputs of a gradient are dy, x, mean,
/// var and more; gamma and beta are inputs `parameters` and `parameters` + 1.
Tensor64 before_relu(const NaiveCall& call, size_t parameters) {
  Inputs forward(call.in.begin() + 1, call.in.begin() + 4);
  forward.insert(forward.end(), call.in.begin() + static_cast<std::ptrdiff_t>(parameters), call.in.end());
  const Tensor64 y = normalised(forward, call.attrs)[0];
  Tensor64 dy = call.in[0];
  for (size_t i = 0; i < dy.values.size(); ++i) dy.values[i] = y.values[i] > 0 ? dy.values[i] : 0.0;
  return dy;
}

Outputs grad_stats_behind_relu(const NaiveCall& call) {
  const Tensor64 g = before_relu(call, 4), &x = call.in[1];
  const auto dim = static_cast<size_t>(call.attrs.integer("dim"));
  Outputs out = {zeros(call.in[2].shape), zeros(call.in[2].shape)};
  for (int64_t i = 0; i < num_elements(x.shape); ++i) {
    const int64_t c = index_of(x.shape, i)[dim];
    out[0].values[c] += g.values[i];
    out[1].values[c] +=
        g.values[i] * (x.values[i] - call.in[2].values[c]) / std::sqrt(call.in[3].values[c] + call.attrs.number("eps"));
  }
  return out;
}

Outputs grad_behind_relu(const NaiveCall& call) {
  const Tensor64 g = before_relu(call, 6), &x = call.in[1];
  const auto dim = static_cast<size_t>(call.attrs.integer("dim"));
  Outputs out = {x};
  for (int64_t i = 0; i < num_elements(x.shape); ++i) {
    const int64_t c = index_of(x.shape, i)[dim];
    const double rstd = 1 / std::sqrt(call.in[3].values[c] + call.attrs.number("eps"));
    const double through = call.in[4].values[c] + (x.values[i] - call.in[2].values[c]) * rstd * call.in[5].values[c];
    const double gamma = call.in.size() > 6 ? call.in[6].values[c] : 1.0;
    out[0].values[i] = gamma * rstd * (g.values[i] - through / call.attrs.number("count"));
  }
  return out;
}

/// Cases with the features in the last, a middle and the first dim; with one element per feature, with whole and
/// partial packs; with and without gamma and beta.
std::vector<KernelCase> batch_norm_kernels() {
  using Fill = CaseOperand::Fill;
  std::vector<KernelCase> calls;
  const std::pair<Shape, int64_t> shapes[] = {{{12, 4}, 1},        {{6, 5}, 1},        {{4, 6, 3, 2}, 1},
                                              {{3, 5, 4, 16}, 3},  {{2, 3, 17}, 1},    {{1, 7}, 1},
                                              {{40, 9, 5, 24}, 3}, {{9, 3, 40, 7}, 1}, {{5, 33}, 0}};
  for (const auto& [shape, dim] : shapes) {
    for (const DType type : {DType::f32, DType::bf16}) {
      const bool bf16 = type == DType::bf16;
      const int64_t features = shape[static_cast<size_t>(dim)];
      const CaseOperand x{.shape = shape, .dtype = type},
          y = unwritten(shape, type), parameter{.shape = {features}, .dtype = type}, mean{{features}},
          var{{features}, Fill::positive}, sum = unwritten({features});
      Attrs attrs{{"dim", dim}, {"eps", 1e-2}, {"count", num_elements(shape) / features}};
      const auto add = [&](const char* kernel, std::vector<CaseOperand> in, std::vector<CaseOperand> out) {
        calls.push_back({kernel, std::move(in), std::move(out), attrs, bf16 ? 1e-2 : 5e-6});
        calls.back().f32_on_cpu = bf16;
      };
      add("batch_norm_mean_var", {x}, {sum, sum});
      for (const bool affine : {true, false}) {
        const auto with = [&](std::vector<CaseOperand> in) {
          if (affine) in.insert(in.end(), {parameter, parameter});
          return in;
        };
        for (const Epilogue& epilogue : {Epilogue{.activation = Activation::relu}, Epilogue{.residual = true},
                                         Epilogue{.residual = true, .activation = Activation::relu}}) {
          set_epilogue(attrs, epilogue);
          std::vector<CaseOperand> in = with({x, mean, var});
          if (epilogue.residual) in.push_back(x);
          add("batch_norm", in, {y});
        }
        set_epilogue(attrs, {});
        attrs.set("behind_relu", true);
        add("batch_norm_grad_stats", with({x, x, mean, var}), {sum, sum});
        add("batch_norm_grad", with({x, x, mean, var, mean, mean}), {y});
        attrs.erase("behind_relu");
      }
    }
  }
  for (const auto& [parts, features] : {std::pair<int64_t, int64_t>{2, 16}, {3, 5}, {8, 300}, {1, 1}})
    calls.push_back({"batch_norm_merge",
                     {{.shape = {parts, 2, features}, .fill = Fill::positive}},
                     {unwritten({features}), unwritten({features})},
                     {},
                     5e-6});
  return calls;
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
    .gradients = {{{"batch_norm", {{{2, 3, 4}}, {{3}}, {{3}}}},
                   {"batch_norm_grad_stats nca,nca,c,c->c,c sums na sums na", "batch_norm_grad nca,nca,c,c,c,c->nca"},
                   "over a cut batch the sums are partial; batch_norm_grad reads whole sums, so they are reduced "
                   "first; dx is then element-wise"},
                  {{"batch_norm", {{{2, 3}}, {{3}}, {{3}}, {{3}}, {{3}}}},
                   {"batch_norm_grad_stats nc,nc,c,c->c,c sums n sums n", "batch_norm_grad nc,nc,c,c,c,c,c->nc"},
                   "the same, and the sums are the gradients of beta and gamma"}},
    .shape_errors = {{{"batch_norm_mean", {{{2, 3}}}, {{"dim", int64_t{2}}}},
                      "batch_norm_mean: dim 2 is not a dim of [2, 3]"},
                     {{"batch_norm_mean", {{{2}}}}, "batch_norm_mean needs an input of at least 2 dims, but got [2]"}},
    .kernels = batch_norm_kernels(),
    .kernel_references = {{"batch_norm_mean_var", mean_and_var},
                          {"batch_norm_merge", merged_statistics},
                          {"batch_norm", fused},
                          {"batch_norm_grad_stats", grad_stats_behind_relu},
                          {"batch_norm_grad", grad_behind_relu}},
    .layers = {{"batch_norm", ", affine: false", {8, 12}},
               {"batch_norm", "", {8, 12}},
               {"batch_norm", ", dim: -1", {8, 12}}},
};

}  // namespace trainctl
