// Cases of adafactor: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include <algorithm>
#include <cmath>
#include <functional>

#include "tests/op_cases/op_cases.h"
#include "tests/op_cases/optimizer_cases.h"

namespace trainctl {
namespace {

using namespace naive;

/// An operand element of a parameter: its row over all dims but the last, and its column, in the whole parameter.
struct Element {
  size_t operand = 0, parameter = 0;
  size_t row = 0, col = 0;
};

/// A parameter of attr `parameters`.
struct Parameter {
  size_t first = 0, ndim = 0;
  Shape local, global, offset;

  explicit Parameter(const Ints& list) : first(static_cast<size_t>(list[0])), ndim(static_cast<size_t>(list[2])) {
    const auto at = list.begin() + 3;
    const auto n = static_cast<std::ptrdiff_t>(ndim);
    local.assign(at, at + n);
    global.assign(at + n, at + 2 * n);
    offset.assign(at + 2 * n, at + 3 * n);
  }
  size_t cols() const { return static_cast<size_t>(global.back()); }
  size_t rows() const { return static_cast<size_t>(num_elements(global)) / cols(); }  // rows of all matrices together
  size_t rows_of_matrix() const { return ndim < 2 ? 1 : static_cast<size_t>(global[ndim - 2]); }
  size_t matrices() const { return rows() / rows_of_matrix(); }
  size_t states() const { return ndim < 2 ? 0 : rows() + matrices() * cols(); }
};

std::vector<Parameter> parameters(const Attrs& attrs) {
  std::vector<Parameter> all;
  for (const Ints& list : attrs.int_lists("parameters")) all.emplace_back(list);
  return all;
}

/// Calls each(element) for the n elements of an operand.
void for_each_element(const Attrs& attrs, size_t n, const std::function<void(const Element&)>& each) {
  const std::vector<Parameter> all = parameters(attrs);
  const auto first = static_cast<size_t>(attrs.integer("first"));
  for (size_t p = 0; p < all.size(); ++p)
    for (int64_t e = 0; e < num_elements(all[p].local); ++e) {
      const size_t at = all[p].first + static_cast<size_t>(e);
      if (at < first || at >= first + n) continue;
      const Index index = index_of(all[p].local, e);
      size_t whole = 0;
      for (size_t d = 0; d < all[p].ndim; ++d)
        whole = whole * static_cast<size_t>(all[p].global[d]) + static_cast<size_t>(index[d] + all[p].offset[d]);
      each({at - first, p, whole / all[p].cols(), whole % all[p].cols()});
    }
}

/// The gradient that the kernels use: the loss scale is divided out, then it is clipped by norm or by value.
double used_gradient(const NaiveCall& call, double g) {
  const double inverse = call.attrs.flag("unscale") ? 1.0 / call.scalars.loss_scale : 1.0;
  const double value = call.attrs.number("clip_value", 0.0), norm = call.attrs.number("clip_norm");
  g *= inverse;
  if (value > 0) g = std::clamp(g, -value, value);
  if (norm > 0) g *= std::min(1.0, norm / (std::sqrt(call.in[1].values[0]) * inverse + 1e-6));
  return g;
}

/// True if the squared norm of all gradients, input `at`, is not finite and the step is therefore skipped.
bool is_skipped(const NaiveCall& call, size_t at = 1) {
  return call.attrs.flag("skip_not_finite") && !std::isfinite(call.in[at].values[0]);
}

/// Returns the first element of each parameter in a list that has `of(parameter)` elements for each.
std::vector<size_t> starts(const std::vector<Parameter>& all, const std::function<size_t(const Parameter&)>& of) {
  std::vector<size_t> at(1);
  for (const Parameter& p : all) at.push_back(at.back() + of(p));
  return at;
}

std::vector<size_t> starts_of_sums(const std::vector<Parameter>& all) {
  return starts(all, [](const Parameter& p) { return p.states() + 1; });
}
std::vector<size_t> starts_of_states(const std::vector<Parameter>& all) {
  return starts(all, [](const Parameter& p) { return p.states(); });
}
std::vector<size_t> starts_of_means(const std::vector<Parameter>& all) {
  return starts(all, [](const Parameter& p) { return p.ndim < 2 ? 0 : p.matrices(); });
}

/// The sums of squares of gradients by row and column, and of weights, for each parameter (adafactor_rule.h).
Outputs sums(const NaiveCall& call) {
  const std::vector<Parameter> all = parameters(call.attrs);
  const std::vector<size_t> at = starts_of_sums(all);
  Outputs out = {zeros(call.before[0].shape)};
  std::vector<double>& to = out[0].values;
  for_each_element(call.attrs, call.in[0].values.size(), [&](const Element& e) {
    const Parameter& p = all[e.parameter];
    const double g = used_gradient(call, call.in[0].values[e.operand]), w = call.in.back().values[e.operand];
    if (p.ndim >= 2) {
      to[at[e.parameter] + e.row] += g * g;
      to[at[e.parameter] + p.rows() + e.row / p.rows_of_matrix() * p.cols() + e.col] += g * g;
    }
    to[at[e.parameter] + p.states()] += w * w;
  });
  return out;
}

/// The states after the step, and the means of the row states, from the sums.
Outputs states(const NaiveCall& call) {
  const std::vector<Parameter> all = parameters(call.attrs);
  const std::vector<size_t> of_sums = starts_of_sums(all), of_states = starts_of_states(all);
  Outputs out = call.before;
  size_t mean_at = 0;
  for (size_t p = 0; p < all.size(); ++p) {
    for (size_t i = 0; i < all[p].states() && !is_skipped(call); ++i) {
      double& state = out[0].values[of_states[p] + i];
      const double of =
          i < all[p].rows() ? static_cast<double>(all[p].cols()) : static_cast<double>(all[p].rows_of_matrix());
      state += call.scalars.square_rate * (call.in[0].values[of_sums[p] + i] / of - state);
    }
    for (size_t m = 0; m < all[p].matrices(); ++m) {
      double sum = 0;
      for (size_t r = 0; r < all[p].rows_of_matrix(); ++r)
        sum += out[0].values[of_states[p] + m * all[p].rows_of_matrix() + r];
      out[1].values[mean_at++] = sum / static_cast<double>(all[p].rows_of_matrix());
    }
  }
  return out;
}

/// The variance of an element. `own`: the variances of the elements of vectors before the step.
double variance(const NaiveCall& call, const Element& e, const Tensor64& own, double g) {
  const std::vector<Parameter> all = parameters(call.attrs);
  const Parameter& p = all[e.parameter];
  if (p.ndim < 2) return own.values[e.operand] + call.scalars.square_rate * (g * g - own.values[e.operand]);
  const Tensor64 &state = call.in[call.in.size() - 2], &mean = call.in.back();
  const size_t at = starts_of_states(all)[e.parameter], matrix = e.row / p.rows_of_matrix();
  return state.values[at + e.row] * state.values[at + p.rows() + matrix * p.cols() + e.col] /
         std::max(mean.values[starts_of_means(all)[e.parameter] + matrix], call.attrs.number("eps"));
}

double change(const NaiveCall& call, double g, double of_variance) {
  const double eps = call.attrs.number("eps");
  return g / std::sqrt(std::max(of_variance, eps * eps));
}

Outputs norms(const NaiveCall& call) {
  Outputs out = {zeros(call.before[0].shape)};
  for_each_element(call.attrs, call.in[0].values.size(), [&](const Element& e) {
    const double g = used_gradient(call, call.in[0].values[e.operand]),
                 u = change(call, g, variance(call, e, call.in.back(), g));
    out[0].values[e.parameter] += u * u;
  });
  return out;
}

/// The weights after the step and, for vectors, the variances of the elements.
Outputs update(const NaiveCall& call) {
  const std::vector<Parameter> all = parameters(call.attrs);
  const std::vector<size_t> of_sums = starts_of_sums(all);
  const bool factored = all[0].ndim >= 2;
  const size_t sums_at = call.in.size() - (factored ? 4 : 2);
  const double lr = learning_rate(call.scalars, call.attrs);
  Outputs out = call.before;
  for_each_element(call.attrs, call.in[0].values.size(), [&](const Element& e) {
    if (is_skipped(call)) return;
    const Parameter& p = all[e.parameter];
    const auto elements = static_cast<double>(num_elements(p.global));
    const double g = used_gradient(call, call.in[0].values[e.operand]);
    const double v = variance(call, e, factored ? call.before[0] : call.before[1], g);
    const double weight_rms = std::sqrt(call.in[sums_at].values[of_sums[e.parameter] + p.states()] / elements);
    const double change_rms = std::sqrt(call.in[sums_at + 1].values[e.parameter] / elements);
    const double step = std::max(call.attrs.number("rms_eps"), weight_rms) *
                        std::min(lr, static_cast<double>(call.scalars.relative_rate)) /
                        std::max(1.0, change_rms / call.attrs.number("max_update_rms"));
    double& w = out[0].values[e.operand];
    w = (1 - lr * call.attrs.number("weight_decay")) * w - step * change(call, g, v);
    if (!factored) out[1].values[e.operand] = v;
  });
  if (out.size() > (factored ? 1u : 2u)) out.back().values = out[0].values;
  return out;
}

struct Range {
  std::vector<Ints> parameters;
  int64_t first, n;
};

/// The ranges of parameters to test: a whole matrix, a part of one matrix, parts of several matrices, and vectors.
std::vector<Range> ranges() {
  return {{{{0, 0, 2, 5, 7, 5, 7, 0, 0}, {35, 0, 2, 3, 4, 6, 8, 3, 4}}, 10, 30},
          {{{0, 0, 4, 2, 2, 2, 3, 4, 2, 2, 3, 2, 0, 0, 0}}, 0, 24},
          {{{0, 0, 1, 37, 37, 0}, {37, 0, 1, 5, 9, 4}}, 3, 37}};
}

std::vector<KernelCase> adafactor_kernels() {
  using Fill = CaseOperand::Fill;
  std::vector<KernelCase> calls;
  enum Way { plain, clipped, clipped_by_value, skipped, unscaled };
  for (const Range& range : ranges())
    for (const Way way : {plain, clipped, clipped_by_value, skipped, unscaled}) {
      const bool clips = way != plain;
      Attrs attrs{
          {"eps", 1e-3},         {"rms_eps", 1e-3},      {"max_update_rms", clips ? 1.0 : 0.1},
          {"weight_decay", 0.1}, {"first", range.first}, {"clip_norm", way == clipped || way == unscaled ? 0.5 : 0.0}};
      if (way == clipped_by_value) attrs.set("clip_value", 0.3);
      if (way == skipped || way == unscaled) attrs.set("skip_not_finite", true);
      if (way == unscaled) attrs.set("unscale", true);
      attrs.set("parameters", range.parameters);
      StepScalars scalars;
      scalars.learning_rate = 0.1f;
      scalars.square_rate = 0.3f;
      scalars.relative_rate = clips ? 0.05f : 1.0f;
      if (way == unscaled) scalars.loss_scale = 3;
      const std::vector<Parameter> all = parameters(attrs);
      const auto elements = [](size_t n) { return Shape{static_cast<int64_t>(n)}; };
      const Shape of_sums = elements(starts_of_sums(all).back()), of_states = elements(starts_of_states(all).back());
      const Shape of_means = elements(starts_of_means(all).back()), of_norms = elements(all.size());
      const CaseOperand gradient{.shape = {range.n}, .dtype = clips ? DType::f32 : DType::bf16};
      const CaseOperand weight{.shape = {range.n}}, own{.shape = {range.n}, .fill = Fill::positive};
      const CaseOperand squares{.shape = {1}, .fill = Fill::number, .number = way == skipped ? HUGE_VAL : 4};
      const CaseOperand positive_sums{.shape = of_sums, .fill = Fill::positive};
      const CaseOperand positive_states{.shape = of_states, .fill = Fill::positive};
      const CaseOperand positive_means{.shape = of_means, .fill = Fill::positive};
      const CaseOperand positive_norms{.shape = of_norms, .fill = Fill::positive};
      const auto call = [&](const char* kernel, std::vector<CaseOperand> in, std::vector<CaseOperand> out) {
        if (clips) in.insert(in.begin() + 1, squares);
        calls.push_back({kernel, std::move(in), std::move(out), attrs, 1e-5, scalars, !clips});
      };
      const bool factored = all[0].ndim >= 2;
      CaseOperand sums_to = unwritten(of_sums), norms_to = unwritten(of_norms);
      if (clips) {
        sums_to = {.shape = of_sums, .accumulate = true};
        norms_to = {.shape = of_norms, .accumulate = true};
      }
      call("adafactor_sums", {gradient, weight}, {sums_to});
      if (factored)
        call("adafactor_states", {positive_sums},
             {positive_states, {.shape = of_means, .fill = Fill::work, .dtype = DType::i32}});
      const std::vector<CaseOperand> from =
          factored ? std::vector<CaseOperand>{positive_states, positive_means} : std::vector<CaseOperand>{own};
      std::vector<CaseOperand> in{gradient};
      in.insert(in.end(), from.begin(), from.end());
      call("adafactor_norms", in, {norms_to});
      in = {gradient, positive_sums, positive_norms};
      if (factored) in.insert(in.end(), from.begin(), from.end());
      std::vector<CaseOperand> out{weight};
      if (!factored) out.push_back(own);
      if (clips) out.push_back(unwritten({range.n}, DType::bf16));
      call("adafactor_update", in, out);
      if (clips) calls.back().tolerance = 1e-2;
    }
  return calls;
}

}  // namespace

extern const OpCases adafactor_cases = {.kernels = adafactor_kernels(),
                                        .kernel_references = {{"adafactor_sums", sums},
                                                              {"adafactor_states", states},
                                                              {"adafactor_norms", norms},
                                                              {"adafactor_update", update}}};

}  // namespace trainctl
