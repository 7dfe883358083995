#include "tests/op_cases/far_rows.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "engine/graph/bf16.h"
#include "engine/ops/random.h"

namespace trainctl {
namespace {

using Doubles = std::vector<double>;

constexpr int64_t kRows = 3;  // equal except for their labels: the first class, the middle one, the last
constexpr double kScale = 0.01;

double rounded(double v, DType type) {
  const auto f = static_cast<float>(v);
  return type == DType::f32 ? f : from_bf16(to_bf16(f));
}

/// An operand in host memory.
struct Operand {
  std::vector<uint32_t> memory;
  TensorArg arg;

  Operand(Shape shape, DType type) : memory(static_cast<size_t>(num_elements(shape)), ~0u) {
    arg = {memory.data(), type, shape, shape, Shape(shape.size())};
  }
  Operand(Shape shape, DType type, const Doubles& values) : Operand(std::move(shape), type) {
    for (size_t i = 0; i < values.size(); ++i) {
      if (type == DType::i32) arg.as<int32_t>()[i] = static_cast<int32_t>(values[i]);
      if (type == DType::f32) arg.as<float>()[i] = static_cast<float>(values[i]);
      if (type == DType::bf16) arg.as<uint16_t>()[i] = to_bf16(static_cast<float>(values[i]));
    }
  }
  Doubles values() const {
    Doubles v(memory.size());
    for (size_t i = 0; i < v.size(); ++i)
      v[i] = double{arg.dtype == DType::f32 ? arg.as<float>()[i] : from_bf16(arg.as<uint16_t>()[i])};
    return v;
  }
};

struct NamedRow {
  std::string name;
  Doubles x;
};

std::vector<NamedRow> far_rows(int64_t n, DType type) {
  const double most = type == DType::f32 ? double{std::numeric_limits<float>::max()} : 0x1.fep127, none = INFINITY;
  const auto row = [&](auto f) {
    Doubles x(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) {
      const double ordinary = 8.0 * philox_uniform(7, static_cast<uint64_t>(i), 0) - 4.0;
      x[static_cast<size_t>(i)] = rounded(f(i, ordinary), type);
    }
    return x;
  };
  const auto at = [](int64_t i, int64_t place, double there, double else_where) {
    return i == place ? there : else_where;
  };
  const auto part = [n](int64_t i) { return static_cast<double>(i) / static_cast<double>(n); };
  return {
      {"ordinary numbers", row([&](int64_t, double v) { return v; })},
      {"the lowest number", row([&](int64_t, double) { return -most; })},
      {"the highest number", row([&](int64_t, double) { return most; })},
      {"the highest and the lowest", row([&](int64_t i, double) { return i % 2 == 0 ? most : -most; })},
      {"the highest once", row([&](int64_t i, double v) { return at(i, n / 2, most, v); })},
      {"the lowest among ordinary ones", row([&](int64_t i, double v) { return i % 3 == 0 ? -most : v; })},
      {"the lowest before an ordinary one", row([&](int64_t i, double v) { return at(i, n - 1, v, -most); })},
      {"the lowest behind an ordinary one", row([&](int64_t i, double v) { return at(i, 0, v, -most); })},
      {"-inf among ordinary ones", row([&](int64_t i, double v) { return i % 3 == 1 ? -none : v; })},
      {"-inf and the lowest", row([&](int64_t i, double) { return i % 3 == 0 ? -most : -none; })},
      {"-inf", row([&](int64_t, double) { return -none; })},
      {"+inf once", row([&](int64_t i, double v) { return at(i, n / 2, none, v); })},
      {"no number, once", row([&](int64_t i, double v) { return at(i, n / 2, NAN, v); })},
      {"from the lowest up", row([&](int64_t i, double) { return most * (part(i) - 1.0); })},
      {"from lowest to highest", row([&](int64_t i, double) { return most * (2.0 * part(i) - 1.0); })},
      {"from the highest down", row([&](int64_t i, double) { return most * (1.0 - part(i)); })},
      {"up to 1e38 and over", row([&](int64_t i, double) { return 1e38 * (0.9 + 0.2 * part(i)); })},
      {"up to -1e38 and over", row([&](int64_t i, double) { return -1e38 * (1.1 - 0.2 * part(i)); })},
      {"up to 2^29 and over", row([&](int64_t i, double) { return 0x1p29 * (0.9 + 0.2 * part(i)); })},
      {"up to -2^29 and over", row([&](int64_t i, double) { return -0x1p29 * (1.1 - 0.2 * part(i)); })},
      {"-1e9", row([&](int64_t, double) { return -1e9; })},
      {"1e9 apart", row([&](int64_t i, double v) { return i % 3 == 0 ? v : v - 1e9; })},
      {"next to 4e8", row([&](int64_t i, double) { return 4e8 - 32.0 * static_cast<double>(i % 5); })},
      {"up from thousands", row([&](int64_t i, double v) { return 3000.0 + 500.0 * part(i) + v; })},
  };
}

Doubles softmax_of(const Doubles& x) {
  double top = x[0], sum = 0;
  for (const double v : x) top = std::isnan(v) || v > top ? v : top;
  Doubles y = x;
  for (double& v : y) sum += v = std::exp(v - top);
  for (double& v : y) v /= sum;
  return y;
}
double loss_of(const Doubles& x, size_t label) {
  const double top = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (const double v : x) sum += std::exp(v - top);
  return std::log(sum) + (top - x[label]);
}

/// Relative to the largest expected number, or to `least`; NaNs and infinities must be the same.
void check_near(const Doubles& got, const Doubles& expected, double least, double tolerance) {
  REQUIRE(got.size() == expected.size());
  double largest = least, worst = 0;
  bool same_kind = true;
  for (size_t i = 0; i < got.size(); ++i) {
    if (!std::isfinite(expected[i])) {
      same_kind &= std::isnan(expected[i]) ? std::isnan(got[i]) : got[i] == expected[i];
      continue;
    }
    same_kind &= std::isfinite(got[i]);
    largest = std::max(largest, std::fabs(expected[i]));
    worst = std::max(worst, std::fabs(got[i] - expected[i]));
  }
  CHECK(same_kind);
  CHECK(worst <= tolerance * largest);
}

double tolerance(DType type) { return type == DType::f32 ? 1e-5 : 1e-2; }

void check_softmax(const CaseDevice& device, DType type, const Doubles& x, const Doubles& dy, bool columns) {
  const auto n = static_cast<int64_t>(x.size());
  const Shape shape = columns ? Shape{n, kRows} : Shape{kRows, n};
  const auto tensor = [&](const Doubles& row) {  // kRows times
    Doubles all;
    for (int64_t i = 0; i < kRows * n; ++i) all.push_back(row[static_cast<size_t>(columns ? i / kRows : i % n)]);
    return all;
  };
  const Doubles y = softmax_of(x);
  Doubles y_in = y, dx = y;
  double total = 0;
  for (size_t i = 0; i < y.size(); ++i) y_in[i] = rounded(y[i], type), total += y_in[i] * dy[i];
  for (size_t i = 0; i < y.size(); ++i) dx[i] = y_in[i] * (dy[i] - total);

  const Operand from(shape, type, tensor(x)), given_y(shape, type, tensor(y_in)), given_dy(shape, type, tensor(dy));
  Operand to(shape, type), grad(shape, type);
  KernelCall forward, backward;
  forward.attrs = backward.attrs = {{"dim", int64_t{columns ? 0 : 1}}};
  forward.in = {from.arg}, forward.out = {to.arg};
  backward.in = {given_dy.arg, given_y.arg}, backward.out = {grad.arg};
  device.prepare("softmax", forward)();
  device.prepare("softmax_grad", backward)();
  check_near(to.values(), tensor(y), 0, tolerance(type));
  const double likeliest = std::fmax(0.0, *std::max_element(y.begin(), y.end()));  // beside it dy and their mean cancel
  check_near(grad.values(), tensor(dx), likeliest, tolerance(type));
}

void check_loss(const CaseDevice& device, DType type, const Doubles& x) {
  const auto n = static_cast<int64_t>(x.size());
  const Doubles labels = {0, static_cast<double>(n / 2), static_cast<double>(n - 1)}, y = softmax_of(x);
  Doubles logits, slopes;
  double loss = 0;
  for (const double label : labels) {
    logits.insert(logits.end(), x.begin(), x.end());
    for (size_t i = 0; i < y.size(); ++i) {
      const bool own = static_cast<double>(i) == label;
      slopes.push_back(kScale * (y[i] - (own ? 1.0 : 0.0)));
    }
    loss += kScale * loss_of(x, static_cast<size_t>(label));
  }
  const Operand from({kRows, n}, type, logits), classes({kRows}, DType::i32, labels);
  for (const std::string op :
       {"softmax_cross_entropy", "softmax_cross_entropy_grad", "softmax_cross_entropy_with_grad"}) {
    CAPTURE(op);
    const bool has_loss = op != "softmax_cross_entropy_grad", has_grad = op != "softmax_cross_entropy";
    Operand total({1}, DType::f32), grad({kRows, n}, type);
    KernelCall call;
    call.attrs = {{"scale", kScale}};
    call.in = {from.arg, classes.arg};
    if (has_loss) call.out.push_back(total.arg);
    if (has_grad) call.out.push_back(grad.arg);
    device.prepare(op, call)();
    if (has_loss) check_near(total.values(), {loss}, kScale, tolerance(type));
    if (has_grad) check_near(grad.values(), slopes, kScale, tolerance(type));
  }
}

Doubles ordinary_slopes(int64_t n, DType type) {
  Doubles dy(static_cast<size_t>(n));
  for (size_t i = 0; i < dy.size(); ++i) dy[i] = rounded(2.0 * philox_uniform(8, i, 0) - 1.0, type);
  return dy;
}

}  // namespace

void check_far_rows(const CaseDevice& device, DType type, int64_t n) {
  for (const NamedRow& row : far_rows(n, type)) {
    CAPTURE(row.name);
    check_softmax(device, type, row.x, ordinary_slopes(n, type), false);
    check_loss(device, type, row.x);
  }
}

void check_far_columns(const CaseDevice& device, DType type, int64_t n) {
  for (const NamedRow& row : far_rows(n, type)) {
    CAPTURE(row.name);
    check_softmax(device, type, row.x, ordinary_slopes(n, type), true);
  }
}

}  // namespace trainctl
