// Naive forward ops in double; see reference.h. Every element is found by its index, nothing is clever.
#include "tests/op_cases/reference.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "engine/base/error.h"
#include "engine/ops/random.h"

namespace trainctl {
namespace {

using Index = std::vector<int64_t>;
using Inputs = std::vector<Tensor64>;
using Outputs = std::vector<Tensor64>;

int64_t flat(const Shape& shape, const Index& index) {
  int64_t at = 0;
  for (size_t d = 0; d < shape.size(); ++d) at = at * shape[d] + index[d];
  return at;
}

Index index_of(const Shape& shape, int64_t at) {
  Index index(shape.size());
  for (size_t d = shape.size(); d-- > 0;) {
    index[d] = at % shape[d];
    at /= shape[d];
  }
  return index;
}

Tensor64 make(const Shape& shape, const std::function<double(const Index&)>& value) {
  Tensor64 t{shape, std::vector<double>(static_cast<size_t>(num_elements(shape)))};
  for (int64_t i = 0; i < num_elements(shape); ++i) t.values[i] = value(index_of(shape, i));
  return t;
}

double at(const Tensor64& t, const Index& index) { return t.values[flat(t.shape, index)]; }

/// The element of `t` that broadcasting puts at `index`.
double broadcast_at(const Tensor64& t, const Index& index) {
  Index own(t.shape.size());
  const size_t skipped = index.size() - own.size();
  for (size_t d = 0; d < own.size(); ++d) own[d] = t.shape[d] == 1 ? 0 : index[skipped + d];
  return at(t, own);
}

Outputs map(const Inputs& in, double (*f)(double)) {
  Tensor64 y = in[0];
  for (double& v : y.values) v = f(v);
  return {y};
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

Outputs add(const Inputs& in, const Attrs&) {
  return {make(broadcast_shapes(in[0].shape, in[1].shape),
               [&](const Index& i) { return broadcast_at(in[0], i) + broadcast_at(in[1], i); })};
}

Outputs mul(const Inputs& in, const Attrs&) {
  return {make(broadcast_shapes(in[0].shape, in[1].shape),
               [&](const Index& i) { return broadcast_at(in[0], i) * broadcast_at(in[1], i); })};
}

/// a[.., r, c], or a[.., c, r] when it is transposed.
double matrix_at(const Tensor64& t, const Index& leading, int64_t r, int64_t c, bool transposed) {
  Index index(leading.begin(), leading.begin() + static_cast<int64_t>(t.shape.size()) - 2);
  index.push_back(transposed ? c : r);
  index.push_back(transposed ? r : c);
  return at(t, index);
}

double gelu_exact(double x) { return 0.5 * x * (1.0 + std::erf(x / std::sqrt(2.0))); }
double gelu_tanh(double x) { return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x))); }

/// What the compiler fuses after a product: an activation of it, or the slope of one at `place`.
double activated(const Attrs& attrs, double x) {
  const std::string name = attrs.text("activation");
  if (name == "relu") return std::max(x, 0.0);
  if (name == "gelu") return attrs.text("approximate") == "tanh" ? gelu_tanh(x) : gelu_exact(x);
  return x;
}
double slope(const Attrs& attrs, double place) {
  if (attrs.text("activation_grad") == "relu") return place > 0 ? 1.0 : 0.0;
  constexpr double kStep = 1e-6;
  const auto gelu = attrs.text("approximate") == "tanh" ? gelu_tanh : gelu_exact;
  return (gelu(place + kStep) - gelu(place - kStep)) / (2 * kStep);
}

Outputs matmul(const Inputs& in, const Attrs& attrs) {
  const bool ta = attrs.flag("transpose_a"), tb = attrs.flag("transpose_b");
  const Shape &a = in[0].shape, &b = in[1].shape;
  Shape shape(a.begin(), a.end() - 2);
  shape.push_back(ta ? a[a.size() - 1] : a[a.size() - 2]);
  shape.push_back(tb ? b[b.size() - 2] : b[b.size() - 1]);
  const int64_t k = ta ? a[a.size() - 2] : a[a.size() - 1];
  const Tensor64 sums = make(shape, [&](const Index& i) {
    const int64_t m = i[i.size() - 2], n = i.back();
    double sum = attrs.flag("bias") ? in[2].values[n] : 0.0;
    for (int64_t j = 0; j < k; ++j) sum += matrix_at(in[0], i, m, j, ta) * matrix_at(in[1], i, j, n, tb);
    return sum;
  });
  Tensor64 out = sums;
  for (size_t i = 0; i < out.values.size(); ++i) {
    out.values[i] = activated(attrs, sums.values[i]);
    if (attrs.has("activation_grad")) out.values[i] *= slope(attrs, in.back().values[i]);
  }
  return attrs.flag("keep_input") ? Outputs{out, sums} : Outputs{out};
}

Outputs transpose(const Inputs& in, const Attrs& attrs) {
  const Ints perm = attrs.ints("perm");
  Shape shape;
  for (int64_t d : perm) shape.push_back(in[0].shape[d]);
  return {make(shape, [&](const Index& i) {
    Index from(i.size());
    for (size_t d = 0; d < i.size(); ++d) from[perm[d]] = i[d];
    return at(in[0], from);
  })};
}

Outputs reduce_sum(const Inputs& in, const Attrs& attrs) {
  const Ints dims = attrs.ints("dims");
  Shape shape;
  for (size_t d = 0; d < in[0].shape.size(); ++d) {
    const bool summed = std::count(dims.begin(), dims.end(), static_cast<int64_t>(d)) > 0;
    if (!summed) shape.push_back(in[0].shape[d]);
    if (summed && attrs.flag("keep_dims")) shape.push_back(1);
  }
  if (shape.empty()) shape = {1};
  Tensor64 y{shape, std::vector<double>(static_cast<size_t>(num_elements(shape)))};
  for (int64_t i = 0; i < num_elements(in[0].shape); ++i) {
    int64_t to = 0;
    const Index index = index_of(in[0].shape, i);
    for (size_t d = 0; d < index.size(); ++d) {
      if (std::count(dims.begin(), dims.end(), static_cast<int64_t>(d)) == 0) to = to * in[0].shape[d] + index[d];
    }
    y.values[to] += attrs.number("scale", 1.0) * in[0].values[i];
  }
  return {y};
}

Outputs softmax(const Inputs& in, const Attrs& attrs) {
  const int64_t dim = attrs.integer("dim");
  return {make(in[0].shape, [&](const Index& i) {
    double sum = 0;
    Index j = i;
    for (j[dim] = 0; j[dim] < in[0].shape[dim]; ++j[dim]) sum += std::exp(at(in[0], j) - at(in[0], i));
    return 1.0 / sum;
  })};
}

Outputs dropout(const Inputs& in, const Attrs& attrs) {
  const double p = attrs.number("p");
  const uint64_t key = stream_key(kCaseSeed, static_cast<uint64_t>(attrs.integer("key")));
  Tensor64 y = in[0];
  for (size_t i = 0; i < y.values.size(); ++i) {
    const bool keep = philox_uniform(key, i, (uint64_t{kCaseStep} << 20) | kCaseMicroBatch) >= static_cast<float>(p);
    y.values[i] = keep ? y.values[i] / (1.0 - p) : 0.0;
  }
  return {y};
}

/// out[c] = sum of f(element, feature) / count over x [n, c, ..].
Tensor64 mean_per_feature(const Tensor64& x, double count, const std::function<double(double, int64_t)>& f) {
  Tensor64 out{{x.shape[1]}, std::vector<double>(static_cast<size_t>(x.shape[1]))};
  for (int64_t i = 0; i < num_elements(x.shape); ++i) {
    const int64_t c = index_of(x.shape, i)[1];
    out.values[c] += f(x.values[i], c) / count;
  }
  return out;
}

Outputs batch_norm_mean(const Inputs& in, const Attrs& attrs) {
  return {mean_per_feature(in[0], attrs.number("count"), [](double x, int64_t) { return x; })};
}

Outputs batch_norm_var(const Inputs& in, const Attrs& attrs) {
  return {mean_per_feature(in[0], attrs.number("count"),
                           [&](double x, int64_t c) { return std::pow(x - in[1].values[c], 2); })};
}

Outputs batch_norm(const Inputs& in, const Attrs& attrs) {
  return {make(in[0].shape, [&](const Index& i) {
    const int64_t c = i[1];
    const double xhat = (at(in[0], i) - in[1].values[c]) / std::sqrt(in[2].values[c] + attrs.number("eps"));
    return in.size() > 3 ? xhat * in[3].values[c] + in[4].values[c] : xhat;
  })};
}

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

Outputs embedding(const Inputs& in, const Attrs&) {
  Shape shape = in[0].shape;
  shape.push_back(in[1].shape[1]);
  return {make(shape, [&](const Index& i) {
    const auto id = static_cast<int64_t>(at(in[0], Index(i.begin(), i.end() - 1)));
    return at(in[1], {id, i.back()});
  })};
}

Outputs total(const Inputs& in, const Attrs& attrs, double (*f)(double)) {
  double sum = 0;
  for (size_t i = 0; i < in[0].values.size(); ++i) sum += f(in[0].values[i] - in[1].values[i]);
  return {{{1}, {attrs.number("scale", 1.0) * sum}}};
}

Outputs softmax_cross_entropy(const Inputs& in, const Attrs& attrs) {
  const int64_t c = in[0].shape.back();
  double sum = 0;
  for (size_t r = 0; r < in[1].values.size(); ++r) {
    const double* x = in[0].values.data() + static_cast<int64_t>(r) * c;
    double exps = 0;
    for (int64_t i = 0; i < c; ++i) exps += std::exp(x[i] - x[static_cast<int64_t>(in[1].values[r])]);
    sum += std::log(exps);
  }
  return {{{1}, {attrs.number("scale", 1.0) * sum}}};
}

using Forward = std::function<Outputs(const Inputs&, const Attrs&)>;

const std::map<std::string, Forward>& forwards() {
  static const std::map<std::string, Forward> all = {
      {"reshape",
       [](const Inputs& in, const Attrs& a) {
         return Outputs{{a.ints("shape"), in[0].values}};
       }},
      {"transpose", transpose},
      {"matmul", matmul},
      {"add_bias", add},
      {"add", add},
      {"mul", mul},
      {"reduce_sum", reduce_sum},
      {"relu", [](const Inputs& in, const Attrs&) { return map(in, [](double x) { return std::max(x, 0.0); }); }},
      {"sigmoid",
       [](const Inputs& in, const Attrs&) { return map(in, [](double x) { return 1 / (1 + std::exp(-x)); }); }},
      {"tanh", [](const Inputs& in, const Attrs&) { return map(in, [](double x) { return std::tanh(x); }); }},
      {"gelu", [](const Inputs& in,
                  const Attrs& a) { return map(in, a.text("approximate") == "tanh" ? gelu_tanh : gelu_exact); }},
      {"softmax", softmax},
      {"dropout", dropout},
      {"batch_norm_mean", batch_norm_mean},
      {"batch_norm_var", batch_norm_var},
      {"batch_norm", batch_norm},
      {"batch_norm_running", [](const Inputs&, const Attrs&) { return Outputs{}; }},
      {"layer_norm", layer_norm},
      {"embedding", embedding},
      {"mae", [](const Inputs& in, const Attrs& a) { return total(in, a, [](double d) { return std::fabs(d); }); }},
      {"mse", [](const Inputs& in, const Attrs& a) { return total(in, a, [](double d) { return d * d; }); }},
      {"softmax_cross_entropy", softmax_cross_entropy},
  };
  return all;
}

}  // namespace

std::vector<Tensor64> reference(const std::string& op, const std::vector<Tensor64>& inputs, const Attrs& attrs) {
  const auto forward = forwards().find(op);
  if (forward == forwards().end()) check(false, "no reference of op " + op);
  return forward->second(inputs, attrs);
}

}  // namespace trainctl
