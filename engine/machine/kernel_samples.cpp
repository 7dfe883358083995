// Measured times of kernels, and a model of them for sizes that were not measured.
#include "engine/machine/kernel_samples.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace trainctl {
namespace {

using Row = std::array<double, 3>;  // 1, operations, bytes
using Samples = std::vector<KernelSample>;

constexpr size_t kNone = std::numeric_limits<size_t>::max();

Row row_of(const Cost& cost) { return {1, cost.flops, cost.bytes}; }

double dot(const Row& a, const Row& b) { return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]; }

/// A symmetric system of equations in the unknowns of `used`, by Gaussian elimination; false if it is singular.
bool solve(std::array<Row, 3> matrix, Row right, unsigned used, Row& x) {
  std::vector<int> at;
  for (int i = 0; i < 3; ++i)
    if ((used >> i & 1U) != 0) at.push_back(i);
  for (size_t p = 0; p < at.size(); ++p) {
    const int pivot = at[p];
    if (matrix[pivot][pivot] <= 1e-12) return false;
    for (size_t q = p + 1; q < at.size(); ++q) {
      const double times = matrix[at[q]][pivot] / matrix[pivot][pivot];
      for (int column : at) matrix[at[q]][column] -= times * matrix[pivot][column];
      right[at[q]] -= times * right[pivot];
    }
  }
  x = {};
  for (size_t p = at.size(); p-- > 0;) {
    double sum = right[at[p]];
    for (size_t q = p + 1; q < at.size(); ++q) sum -= matrix[at[p]][at[q]] * x[at[q]];
    x[at[p]] = sum / matrix[at[p]][at[p]];
  }
  return true;
}

/// The coefficients >= 0 with the least sum of squares of relative errors: of three, the best of all subsets that are
/// not negative. `without` is left out.
Row fit(const Samples& samples, size_t without) {
  Row scale = {};
  for (size_t s = 0; s < samples.size(); ++s)
    for (int i = 0; s != without && i < 3; ++i) scale[i] = std::max(scale[i], row_of(samples[s].cost)[i]);
  std::array<Row, 3> matrix = {};
  Row right = {};
  double count = 0;
  for (size_t s = 0; s < samples.size(); ++s) {
    if (s == without) continue;
    Row row = row_of(samples[s].cost);
    for (int i = 0; i < 3; ++i) row[i] = scale[i] > 0 ? row[i] / scale[i] / samples[s].priced().value : 0;
    for (int i = 0; i < 3; ++i) {
      for (int j = 0; j < 3; ++j) matrix[i][j] += row[i] * row[j];
      right[i] += row[i];
    }
    ++count;
  }
  for (int i = 0; i < 3; ++i) {  // unknowns of one size, so that a pivot's size says whether the system is singular
    const double size = std::sqrt(matrix[i][i]);
    if (size == 0) continue;
    scale[i] *= size;
    right[i] /= size;
    for (int j = 0; j < 3; ++j) {
      matrix[i][j] /= size;
      matrix[j][i] /= size;
    }
  }
  Row best = {};
  double least = std::numeric_limits<double>::infinity();
  for (unsigned used = 1; used < 8; ++used) {
    Row x;
    if (!solve(matrix, right, used, x) || std::any_of(x.begin(), x.end(), [](double v) { return v < 0; })) continue;
    const double squares =
        count - 2 * dot(x, right) + dot(x, {dot(matrix[0], x), dot(matrix[1], x), dot(matrix[2], x)});
    if (squares >= least) continue;
    least = squares;
    best = x;
  }
  for (int i = 0; i < 3; ++i) best[i] = scale[i] > 0 ? best[i] / scale[i] : 0;
  return best;
}

/// The properties that distinguish a call from others.
struct Point {
  const std::vector<double>& sizes;
  double flops;
  std::string_view attrs;
};

Point point_of(const KernelSample& sample) { return {sample.sizes, sample.cost.flops, sample.attrs}; }

/// Distance between two calls, in powers of two.
double distance(const Point& a, const Point& b) {
  constexpr double kOtherAttrs = 1;
  const double flops = std::log2(std::max(a.flops, 1.0) / std::max(b.flops, 1.0));
  double square = flops * flops + (a.attrs == b.attrs ? 0 : kOtherAttrs * kOtherAttrs);
  for (size_t i = 0; i < a.sizes.size(); ++i) square += (a.sizes[i] - b.sizes[i]) * (a.sizes[i] - b.sizes[i]);
  return std::sqrt(square);
}

/// The interpolated residual, log(measured / modelled). A call at a distance of four powers of two has the same weight
/// as the assumption that the residual is 0.
double residual_near(const Samples& samples, const std::vector<double>& residuals, const Point& call, size_t without) {
  constexpr double kFar = 4, kSame = 1e-3;
  double weights = 1 / std::pow(kFar, 4), sum = 0;
  for (size_t s = 0; s < samples.size(); ++s) {
    if (s == without) continue;
    const double weight = 1 / std::pow(std::max(distance(call, point_of(samples[s])), kSame), 4);
    weights += weight;
    sum += weight * residuals[s];
  }
  return sum / weights;
}

std::vector<double> residuals_of(const Row& coefficients, const Samples& samples) {
  std::vector<double> residuals;
  residuals.reserve(samples.size());
  for (const KernelSample& sample : samples)
    residuals.push_back(std::log(sample.priced().value / dot(coefficients, row_of(sample.cost))));
  return residuals;
}

double seconds_of(const Row& coefficients, const Samples& samples, const std::vector<double>& residuals,
                  const Point& call, const Cost& cost, size_t without) {
  return dot(coefficients, row_of(cost)) * std::exp(residual_near(samples, residuals, call, without));
}

double own_error(const Samples& samples) {
  if (samples.size() == 1) return 1;
  double squares = 0;
  for (size_t s = 0; s < samples.size(); ++s) {
    const Row coefficients = fit(samples, s);
    const double seconds = seconds_of(coefficients, samples, residuals_of(coefficients, samples), point_of(samples[s]),
                                      samples[s].cost, s);
    const double error = std::log(seconds / samples[s].priced().value);
    squares += error * error;
  }
  return std::min(1.0, std::sqrt(squares / static_cast<double>(samples.size())));
}

}  // namespace

double distance(const KernelSample& a, const KernelSample& b) { return distance(point_of(a), point_of(b)); }

bool KernelSample::operator==(const KernelSample& other) const {
  return sizes == other.sizes && cost.flops == other.cost.flops && cost.bytes == other.cost.bytes &&
         seconds == other.seconds && attrs == other.attrs && in_step == other.in_step;
}

KernelModel::KernelModel(std::vector<KernelSample> samples)
    : samples_(std::move(samples)), coefficients_(fit(samples_, kNone)), error_(own_error(samples_)) {
  residuals_ = residuals_of(coefficients_, samples_);
}

Seconds KernelModel::seconds(const std::vector<double>& sizes, const Cost& cost, std::string_view attrs) const {
  return {seconds_of(coefficients_, samples_, residuals_, {sizes, cost.flops, attrs}, cost, kNone)};
}

double KernelModel::error(const std::vector<double>& sizes, const Cost& cost, std::string_view attrs) const {
  constexpr double kMeasured = 0.03;  // the same call, measured again
  double nearest = 1;                 // in powers of two
  for (const KernelSample& sample : samples_)
    nearest = std::min(nearest, distance({sizes, cost.flops, attrs}, point_of(sample)));
  return std::max(kMeasured, nearest * error_);
}

bool KernelModel::shows_rates(Seconds launch) const {
  constexpr double kApart = 4, kLaunches = 10;
  const auto [least, most] = std::minmax_element(samples_.begin(), samples_.end(),
                                                 [](const auto& a, const auto& b) { return a.priced() < b.priced(); });
  return most->priced() >= kApart * least->priced() && most->priced() >= kLaunches * launch;
}

std::string kernel_key(const KernelDef& kernel, Infos inputs, Infos outputs, const Attrs& attrs, bool adds) {
  std::string key = kernel.name;
  for (const TensorInfo& info : inputs) key.append(" ").append(to_string(info.dtype));
  key += " ->";
  for (const TensorInfo& info : outputs) key.append(" ").append(to_string(info.dtype));
  if (attrs.flag("tf32")) key += " tf32";
  return adds ? key + " +=" : key;
}

std::vector<double> kernel_sizes(Infos inputs, Infos outputs) {
  std::vector<double> sizes;
  for (Infos infos : {inputs, outputs})
    for (const TensorInfo& info : infos)
      sizes.push_back(std::log2(static_cast<double>(std::max<int64_t>(bytes_of(info), 1))));
  return sizes;
}

}  // namespace trainctl
