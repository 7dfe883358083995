// Cases of pair_loss: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include <algorithm>
#include <cmath>

#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

double mae(double p, double l, const Attrs&) { return std::fabs(p - l); }
double mae_slope(double p, double l, const Attrs&) { return p > l ? 1 : p < l ? -1 : 0; }

double mse(double p, double l, const Attrs&) { return (p - l) * (p - l); }
double mse_slope(double p, double l, const Attrs&) { return 2 * (p - l); }

double smooth_l1(double p, double l, const Attrs& attrs) {
  const double beta = attrs.number("beta", 1), off = std::fabs(p - l);
  return off < beta ? 0.5 * off * off / beta : off - 0.5 * beta;
}
double smooth_l1_slope(double p, double l, const Attrs& attrs) {
  const double beta = attrs.number("beta", 1);
  return std::fabs(p - l) < beta ? (p - l) / beta : mae_slope(p, l, attrs);
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double binary_cross_entropy(double p, double label, const Attrs& attrs) {
  const double e = attrs.number("label_smoothing", 0), l = (1 - e) * label + e / 2;
  return -attrs.number("pos_weight", 1) * l * std::log(sigmoid(p)) - (1 - l) * std::log(1 - sigmoid(p));
}
double binary_cross_entropy_slope(double p, double label, const Attrs& attrs) {
  const double e = attrs.number("label_smoothing", 0), l = (1 - e) * label + e / 2;
  return (1 - l) * sigmoid(p) - attrs.number("pos_weight", 1) * l * (1 - sigmoid(p));
}

double huber(double p, double l, const Attrs& attrs) {
  const double delta = attrs.number("delta", 1), off = std::fabs(p - l);
  return off < delta ? 0.5 * off * off : delta * (off - 0.5 * delta);
}
double huber_slope(double p, double l, const Attrs& attrs) {
  const double delta = attrs.number("delta", 1);
  return std::min(std::max(p - l, -delta), delta);
}

double quantile(double p, double l, const Attrs& attrs) {
  const double q = attrs.number("q", 0.5);
  return std::max(q * (l - p), (1 - q) * (p - l));
}
double quantile_slope(double p, double l, const Attrs& attrs) {
  const double q = attrs.number("q", 0.5);
  return p < l ? -q : p > l ? 1 - q : 0;
}

double log_cosh(double p, double l, const Attrs&) { return std::log(std::cosh(p - l)); }
double log_cosh_slope(double p, double l, const Attrs&) { return std::tanh(p - l); }

double poisson(double p, double l, const Attrs&) { return std::exp(p) - l * p; }
double poisson_slope(double p, double l, const Attrs&) { return std::exp(p) - l; }

double focal(double p, double l, const Attrs& attrs) {
  const double alpha = attrs.number("alpha", 0.25), s = sigmoid(p), t = s * l + (1 - s) * (1 - l);
  const double share = alpha < 0 ? 1 : alpha * l + (1 - alpha) * (1 - l);
  return share * std::pow(1 - t, attrs.number("gamma", 2)) * (-l * std::log(s) - (1 - l) * std::log(1 - s));
}
double focal_slope(double p, double l, const Attrs& attrs) {
  constexpr double kStep = 1e-6;
  return (focal(p + kStep, l, attrs) - focal(p - kStep, l, attrs)) / (2 * kStep);
}

double kl_div(double p, double l, const Attrs&) { return l > 0 ? l * (std::log(l) - p) : 0; }
double kl_div_slope(double, double l, const Attrs&) { return l > 0 ? -l : 0; }

double hinge(double p, double l, const Attrs&) { return std::max(0.0, 1 - l * p); }
double hinge_slope(double p, double l, const Attrs&) { return 1 - l * p < 0 ? 0 : -l; }

double cosine_embedding(double p, double l, const Attrs& attrs) {
  return l > 0 ? 1 - p : std::max(0.0, p - attrs.number("margin", 0));
}
double cosine_embedding_slope(double p, double l, const Attrs& attrs) {
  return l > 0 ? -1 : p > attrs.number("margin", 0) ? 1 : 0;
}

double mean_value(double p, double, const Attrs&) { return p; }
double mean_value_slope(double, double, const Attrs&) { return 1; }

constexpr const char* kPairLosses[] = {
    "mae",   "mse",    "smooth_l1", "binary_cross_entropy", "huber",     "quantile", "log_cosh", "poisson",
    "focal", "kl_div", "hinge",     "cosine_embedding",     "mean_value"};

struct Loss {
  const char* name;
  Attrs attrs = {};
};

const std::vector<Loss>& losses() {
  static const std::vector<Loss> all = {{"mae"},
                                        {"mse"},
                                        {"smooth_l1"},
                                        {"smooth_l1", {{"beta", 0.25}}},
                                        {"smooth_l1", {{"beta", 0.0}}},
                                        {"binary_cross_entropy"},
                                        {"binary_cross_entropy", {{"label_smoothing", 0.1}}},
                                        {"binary_cross_entropy", {{"pos_weight", 3.0}}},
                                        {"binary_cross_entropy", {{"label_smoothing", 0.2}, {"pos_weight", 0.5}}},
                                        {"huber"},
                                        {"huber", {{"delta", 0.25}}},
                                        {"quantile", {{"q", 0.9}}},
                                        {"log_cosh"},
                                        {"poisson"},
                                        {"focal"},
                                        {"focal", {{"alpha", -1.0}, {"gamma", 3.0}}},
                                        {"focal", {{"alpha", 0.6}, {"gamma", 0.0}}},
                                        {"kl_div"},
                                        {"hinge"},
                                        {"cosine_embedding", {{"margin", 0.1}}},
                                        {"mean_value"}};
  return all;
}

Attrs with_scale(Attrs attrs, double scale) {
  attrs.set("scale", scale);
  return attrs;
}

std::vector<OpCase> pair_loss_rows() {
  std::vector<OpCase> pair_loss_rows;
  for (const Loss& loss : losses()) {
    pair_loss_rows.push_back({loss.name, {{{6, 1}}, fixed({6, 1})}, with_scale(loss.attrs, 1.0 / 6), {{1}}});
    pair_loss_rows.push_back({loss.name, {{{4, 3, 7}}, fixed({4, 3, 7})}, with_scale(loss.attrs, 0.01), {{1}}});
    pair_loss_rows.push_back({loss.name, {{{1, 1}}, fixed({1, 1})}, with_scale(loss.attrs, 1.0), {{1}}});
  }
  return pair_loss_rows;
}

template <naive::PairLoss kLoss>
naive::Outputs sum(const naive::Inputs& in, const Attrs& attrs) {
  return naive::sum_of_pairs(in, attrs, kLoss);
}

template <naive::PairLoss kLoss, naive::PairLoss kSlope>
naive::Outputs sum_and_slopes(const NaiveCall& call) {
  return naive::sum_with_slopes(call.in, call.attrs, kLoss, kSlope);
}

std::vector<RuleCase> pair_loss_rules() {
  std::vector<RuleCase> pair_loss_rules;
  for (const char* name : kPairLosses)
    pair_loss_rules.push_back({{name, {{{2, 3}}, {{2, 3}}}}, "ab,ab->()", "", {{1}}});
  return pair_loss_rules;
}

std::vector<GradientCase> pair_loss_gradients() {
  std::vector<GradientCase> pair_loss_gradients;
  for (const char* name : kPairLosses) {
    pair_loss_gradients.push_back({{name, {{{2, 3}}, {{2, 3}}}},
                                   {std::string(name) + "_grad ab,ab->ab"},
                                   "element by element; the scale is of the whole batch"});
  }
  return pair_loss_gradients;
}

std::vector<KernelCase> pair_loss_kernels() {
  std::vector<KernelCase> calls;
  for (const Loss& loss : losses()) {
    const std::string kernel = std::string(loss.name) + "_with_grad";
    const Attrs attrs = with_scale(loss.attrs, 0.01);
    for (const int64_t n : {1, 7, 37, 4096, 70001}) {
      const CaseOperand x{{n}}, bf16{.shape = {n}, .dtype = DType::bf16};
      const CaseOperand total{.shape = {1}, .fill = CaseOperand::Fill::number, .accumulate = true, .number = 0.5};
      calls.push_back({kernel, {x, x}, {unwritten({1}), unwritten({n})}, attrs, 2e-6});
      calls.push_back({kernel, {x, x}, {total, unwritten({n})}, attrs, 2e-6});
      calls.push_back({kernel, {bf16, x}, {unwritten({1}), unwritten({n}, DType::bf16)}, attrs, 1e-2});
      calls.back().f32_on_cpu = true;
    }
  }
  return calls;
}

}  // namespace

extern const OpCases pair_loss_cases = {
    .rows = pair_loss_rows(),
    .references = {{"mae", sum<mae>},
                   {"mse", sum<mse>},
                   {"smooth_l1", sum<smooth_l1>},
                   {"binary_cross_entropy", sum<binary_cross_entropy>},
                   {"huber", sum<huber>},
                   {"quantile", sum<quantile>},
                   {"log_cosh", sum<log_cosh>},
                   {"poisson", sum<poisson>},
                   {"focal", sum<focal>},
                   {"kl_div", sum<kl_div>},
                   {"hinge", sum<hinge>},
                   {"cosine_embedding", sum<cosine_embedding>},
                   {"mean_value", sum<mean_value>}},
    .rules = pair_loss_rules(),
    .gradients = pair_loss_gradients(),
    .shape_errors = {{{"mae", {{{2, 3}}, {{2}}}}, "mae: input 1 is [2], expected [2, 3]"},
                     {{"binary_cross_entropy", {{{2, 3}}, {{2}}}},
                      "binary_cross_entropy: input 1 is [2], expected [2, 3]"}},
    .kernels = pair_loss_kernels(),
    .kernel_references = {{"mae_with_grad", sum_and_slopes<mae, mae_slope>},
                          {"mse_with_grad", sum_and_slopes<mse, mse_slope>},
                          {"smooth_l1_with_grad", sum_and_slopes<smooth_l1, smooth_l1_slope>},
                          {"binary_cross_entropy_with_grad",
                           sum_and_slopes<binary_cross_entropy, binary_cross_entropy_slope>},
                          {"huber_with_grad", sum_and_slopes<huber, huber_slope>},
                          {"quantile_with_grad", sum_and_slopes<quantile, quantile_slope>},
                          {"log_cosh_with_grad", sum_and_slopes<log_cosh, log_cosh_slope>},
                          {"poisson_with_grad", sum_and_slopes<poisson, poisson_slope>},
                          {"focal_with_grad", sum_and_slopes<focal, focal_slope>},
                          {"kl_div_with_grad", sum_and_slopes<kl_div, kl_div_slope>},
                          {"hinge_with_grad", sum_and_slopes<hinge, hinge_slope>},
                          {"cosine_embedding_with_grad", sum_and_slopes<cosine_embedding, cosine_embedding_slope>},
                          {"mean_value_with_grad", sum_and_slopes<mean_value, mean_value_slope>}},
};

}  // namespace trainctl
