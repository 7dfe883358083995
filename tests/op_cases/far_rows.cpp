// Checks softmax and its loss on rows with the numbers farthest from 0 that their type has.
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

/// Rows of n numbers of `type`, by a name that says what is special about each.
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

/// Compares results. Errors are relative to the largest expected number, or to `least` if that is larger; NaNs and
/// infinities must be the same.
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

/// Compares softmax and its gradient of kRows equal rows x, or of equal columns, with a computation in double.
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
  const double likeliest = std::fmax(0.0, *std::max_element(y.begin(), y.end()));  // beyond it dy and their mean cancel
  check_near(grad.values(), tensor(dx), likeliest, tolerance(type));
}

/// Compares the loss and its gradient. The logits of each row are x, and the labels are the first, a middle and the
/// last class.
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
    KernelCall call{.scalars = &kUnscaledStep};
    call.attrs = {{"scale", kScale}};
    call.in = {from.arg, classes.arg};
    if (has_loss) call.out.push_back(total.arg);
    if (has_grad) call.out.push_back(grad.arg);
    device.prepare(op, call)();
    if (has_loss) check_near(total.values(), {loss}, kScale, tolerance(type));
    if (has_grad) check_near(grad.values(), slopes, kScale, tolerance(type));
  }
}

/// Number of parts of a row. Combining the statistics of the parts must give the result of the whole row.
constexpr int64_t kParts = 2;

int64_t first_of(int64_t part, int64_t n) { return part * (n / 2); }
int64_t size_of(int64_t part, int64_t n) { return part == 0 ? n / 2 : n - n / 2; }

Doubles part_of(const Doubles& rows, int64_t part, int64_t n) {
  Doubles values;
  for (size_t row = 0; row < rows.size() / static_cast<size_t>(n); ++row) {
    const auto begin = rows.begin() + static_cast<int64_t>(row) * n + first_of(part, n);
    values.insert(values.end(), begin, begin + size_of(part, n));
  }
  return values;
}

void append(Doubles& all, const Operand& more) {
  const Doubles values = more.values();
  all.insert(all.end(), values.begin(), values.end());
}

/// Checks softmax of a row that kParts ranks share: first the statistics of each part, then the parts of the result.
void check_softmax_in_parts(const CaseDevice& device, DType type, const Doubles& x) {
  const auto n = static_cast<int64_t>(x.size());
  const Doubles y = softmax_of(x);
  Doubles stats;
  for (int64_t p = 0; p < kParts; ++p) {
    const Operand from({1, size_of(p, n)}, type, part_of(x, p, n));
    Operand of_part({1, 2}, DType::f32);
    KernelCall call{.scalars = &kUnscaledStep};
    call.attrs = {{"dim", int64_t{1}}};
    call.in = {from.arg}, call.out = {of_part.arg};
    device.prepare("softmax_stats", call)();
    append(stats, of_part);
  }
  const Operand all({kParts, 1, 2}, DType::f32, stats);
  Doubles got;
  for (int64_t p = 0; p < kParts; ++p) {
    const Operand from({1, size_of(p, n)}, type, part_of(x, p, n));
    Operand to({1, size_of(p, n)}, type);
    KernelCall call{.scalars = &kUnscaledStep};
    call.attrs = {{"dim", int64_t{1}}};
    call.in = {from.arg, all.arg}, call.out = {to.arg};
    device.prepare("softmax_apply", call)();
    append(got, to);
  }
  check_near(got, y, 0, tolerance(type));
}

/// Checks the loss of a row whose classes kParts ranks share.
void check_loss_in_parts(const CaseDevice& device, DType type, const Doubles& x) {
  const auto n = static_cast<int64_t>(x.size());
  const Doubles y = softmax_of(x);
  for (const int64_t label : {int64_t{0}, n / 2, n - 1}) {
    CAPTURE(label);
    const Operand classes({1}, DType::i32, {static_cast<double>(label)});
    const auto call_on = [&](int64_t p, const Operand& logits) {
      KernelCall call{.scalars = &kUnscaledStep};
      call.attrs = {{"scale", kScale}};
      call.in = {logits.arg, classes.arg};
      call.in[0].offset = {0, first_of(p, n)};
      call.in[0].global_shape = {1, n};
      return call;
    };
    Doubles stats, got, slopes = y;
    for (double& slope : slopes) slope *= kScale;
    slopes[static_cast<size_t>(label)] = kScale * (y[static_cast<size_t>(label)] - 1.0);
    for (int64_t p = 0; p < kParts; ++p) {
      const Operand logits({1, size_of(p, n)}, type, part_of(x, p, n));
      Operand of_part({1, 3}, DType::f32);
      KernelCall call = call_on(p, logits);
      call.out = {of_part.arg};
      device.prepare("softmax_cross_entropy_stats", call)();
      append(stats, of_part);
    }
    const Operand all({kParts, 1, 3}, DType::f32, stats);
    for (int64_t p = 0; p < kParts; ++p) {
      const Operand logits({1, size_of(p, n)}, type, part_of(x, p, n));
      Operand loss({1}, DType::f32), grad({1, size_of(p, n)}, type);
      KernelCall call = call_on(p, logits);
      call.in.push_back(all.arg);
      call.out = {loss.arg};
      device.prepare("softmax_cross_entropy_apply", call)();
      check_near(loss.values(), {kScale * loss_of(x, static_cast<size_t>(label))}, kScale, tolerance(type));
      call.out = {grad.arg};
      device.prepare("softmax_cross_entropy_grad_apply", call)();
      append(got, grad);
    }
    check_near(got, slopes, kScale, tolerance(type));
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
    if (n < kParts) continue;
    check_softmax_in_parts(device, type, row.x);
    check_loss_in_parts(device, type, row.x);
  }
}

void check_far_columns(const CaseDevice& device, DType type, int64_t n) {
  for (const NamedRow& row : far_rows(n, type)) {
    CAPTURE(row.name);
    check_softmax(device, type, row.x, ordinary_slopes(n, type), true);
  }
}

}  // namespace trainctl
