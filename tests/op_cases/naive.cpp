// Implements plain loops over tensors in double, from which the naive references of ops are built.
#include "tests/op_cases/naive.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "engine/ops/random.h"

namespace trainctl::naive {
namespace {

int64_t flat(const Shape& shape, const Index& index) {
  int64_t at = 0;
  for (size_t d = 0; d < shape.size(); ++d) at = at * shape[d] + index[d];
  return at;
}

/// Returns the element of `t` that broadcasts to `index`.
double broadcast_at(const Tensor64& t, const Index& index) {
  Index own(t.shape.size());
  const size_t skipped = index.size() - own.size();
  for (size_t d = 0; d < own.size(); ++d) own[d] = t.shape[d] == 1 ? 0 : index[skipped + d];
  return at(t, own);
}

Shape broadcast_shapes(const Shape& a, const Shape& b) {
  Shape out(std::max(a.size(), b.size()), 1);
  for (const Shape& s : {a, b}) {
    for (size_t d = 0; d < s.size(); ++d) {
      int64_t& to = out[out.size() - s.size() + d];
      to = std::max(to, s[d]);
    }
  }
  return out;
}

}  // namespace

Index index_of(const Shape& shape, int64_t at) {
  Index index(shape.size());
  for (size_t d = shape.size(); d-- > 0;) {
    index[d] = at % shape[d];
    at /= shape[d];
  }
  return index;
}

double at(const Tensor64& t, const Index& index) { return t.values[flat(t.shape, index)]; }

Tensor64 zeros(const Shape& shape) { return {shape, std::vector<double>(static_cast<size_t>(num_elements(shape)))}; }

Tensor64 make(const Shape& shape, const std::function<double(const Index&)>& value) {
  Tensor64 t = zeros(shape);
  for (int64_t i = 0; i < num_elements(shape); ++i) t.values[i] = value(index_of(shape, i));
  return t;
}

Outputs map(const Inputs& in, const std::function<double(double)>& f) {
  Tensor64 y = in[0];
  for (double& v : y.values) v = f(v);
  return {y};
}

Outputs map_pairs(const Inputs& in, double (*f)(double, double)) {
  return {make(broadcast_shapes(in[0].shape, in[1].shape),
               [&](const Index& i) { return f(broadcast_at(in[0], i), broadcast_at(in[1], i)); })};
}

Outputs map_all(const Inputs& in, const std::function<double(const std::vector<double>&)>& f) {
  Shape shape = in[0].shape;
  for (const Tensor64& t : in) shape = broadcast_shapes(shape, t.shape);
  return {make(shape, [&](const Index& i) {
    std::vector<double> values;
    for (const Tensor64& t : in) values.push_back(broadcast_at(t, i));
    return f(values);
  })};
}

double unary(const std::string& function, const Attrs& attrs, double x) {
  using Function = double (*)(const Attrs& attrs, double x);
  static const std::map<std::string, Function> of = {
      {"silu", [](const Attrs&, double v) { return v / (1 + std::exp(-v)); }},
      {"leaky_relu", [](const Attrs& a, double v) { return v > 0 ? v : a.number("negative_slope", 0.01) * v; }},
      {"softplus",
       [](const Attrs& a, double v) {
         const double beta = a.number("beta", 1), t = beta * v;
         return t > a.number("threshold", 20) ? v : std::log1p(std::exp(t)) / beta;
       }},
      {"clip", [](const Attrs& a,
                  double v) { return std::min(std::max(v, a.number("min", -INFINITY)), a.number("max", INFINITY)); }},
      {"abs", [](const Attrs&, double v) { return std::fabs(v); }},
      {"exp", [](const Attrs&, double v) { return std::exp(v); }},
      {"log", [](const Attrs&, double v) { return std::log(v); }},
      {"sqrt", [](const Attrs&, double v) { return std::sqrt(v); }},
      {"pow", [](const Attrs& a, double v) { return std::pow(v, a.number("exponent", 2)); }},
      {"scale", [](const Attrs& a, double v) { return a.number("factor", 1) * v + a.number("shift", 0); }},
      {"softcap",
       [](const Attrs& a, double v) {
         const double cap = a.number("cap", 1);
         return cap * std::tanh(v / cap);
       }},
      {"quick_gelu", [](const Attrs&, double v) { return v / (1 + std::exp(-1.702 * v)); }},
      {"elu", [](const Attrs& a, double v) { return v > 0 ? v : a.number("alpha", 1) * std::expm1(v); }},
      {"selu",
       [](const Attrs&, double v) {
         return 1.0507009873554804934193349852946 * (v > 0 ? v : 1.6732632423543772848170429916717 * std::expm1(v));
       }},
      {"mish", [](const Attrs&, double v) { return v * std::tanh(std::log1p(std::exp(v))); }},
      {"hardswish", [](const Attrs&, double v) { return v * std::min(std::max(v + 3, 0.0), 6.0) / 6; }},
      {"hardsigmoid", [](const Attrs&, double v) { return std::min(std::max(v / 6 + 0.5, 0.0), 1.0); }},
      {"softsign", [](const Attrs&, double v) { return v / (1 + std::fabs(v)); }},
      {"log_sigmoid", [](const Attrs&, double v) { return -std::log1p(std::exp(-v)); }},
      {"sin", [](const Attrs&, double v) { return std::sin(v); }},
      {"cos", [](const Attrs&, double v) { return std::cos(v); }}};
  return of.at(function)(attrs, x);
}

double unary_slope(const std::string& function, const Attrs& attrs, double x) {
  constexpr double kStep = 1e-6;
  return (unary(function, attrs, x + kStep) - unary(function, attrs, x - kStep)) / (2 * kStep);
}

Outputs sum_of_pairs(const Inputs& in, const Attrs& attrs, PairLoss f) {
  double sum = 0;
  for (size_t i = 0; i < in[0].values.size(); ++i) sum += f(in[0].values[i], in[1].values[i], attrs);
  return {{{1}, {attrs.number("scale", 1.0) * sum}}};
}

Outputs sum_with_slopes(const Inputs& in, const Attrs& attrs, PairLoss f, PairLoss slope) {
  Outputs out = sum_of_pairs(in, attrs, f);
  Tensor64 slopes = in[0];
  for (size_t i = 0; i < slopes.values.size(); ++i)
    slopes.values[i] = attrs.number("scale", 1.0) * slope(in[0].values[i], in[1].values[i], attrs);
  out.push_back(std::move(slopes));
  return out;
}

double activated(Activation activation, double x) {
  switch (activation) {
    case Activation::none:
      return x;
    case Activation::relu:
      return std::max(x, 0.0);
    case Activation::gelu:
      return 0.5 * x * (1.0 + std::erf(x / std::sqrt(2.0)));
    case Activation::gelu_tanh:
      return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
  }
  return x;
}

double slope_at(Activation activation, double x) {
  if (activation == Activation::none) return 1.0;
  if (activation == Activation::relu) return x > 0 ? 1.0 : 0.0;
  constexpr double kStep = 1e-6;
  return (activated(activation, x + kStep) - activated(activation, x - kStep)) / (2 * kStep);
}

Outputs with_epilogue(Tensor64 result, const Inputs& in, const Attrs& attrs) {
  const Epilogue epilogue = epilogue_of(attrs);
  if (epilogue.bias) {
    const std::vector<double>& bias = in[2].values;
    for (size_t i = 0; i < result.values.size(); ++i) result.values[i] += bias[i % bias.size()];
  }
  if (epilogue.residual)
    for (size_t i = 0; i < result.values.size(); ++i) result.values[i] += in.back().values[i];
  Tensor64 out = result;
  for (size_t i = 0; i < out.values.size(); ++i) {
    out.values[i] = activated(epilogue.activation, result.values[i]);
    if (epilogue.slope != Activation::none) out.values[i] *= slope_at(epilogue.slope, in.back().values[i]);
  }
  return epilogue.keep_input ? Outputs{out, result} : Outputs{out};
}

bool keeps(double p, int64_t key, uint64_t seed, uint32_t step, size_t i) {
  return philox_uniform(stream_key(seed, static_cast<uint64_t>(key)), i, step) >= static_cast<float>(p);
}

double learning_rate(const StepScalars& scalars, const Attrs& attrs) {
  return double{scalars.learning_rate} * double{static_cast<float>(attrs.number("learning_rate_scale", 1))};
}

double clip_scale(const Inputs& in, const Attrs& attrs) {
  const double clip = attrs.number("clip_norm", 0);
  return clip > 0 ? std::min(1.0, clip / (std::sqrt(in[1].values[0]) + 1e-6)) : 1.0;
}

}  // namespace trainctl::naive
