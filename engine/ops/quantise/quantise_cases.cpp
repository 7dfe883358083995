// Cases of quantise: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include <algorithm>
#include <cmath>

#include "engine/ops/quantise/quantised.h"
#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

/// x as lines: number i of line l.
struct Lines {
  int64_t count, length;
  std::vector<double> numbers;

  double at(int64_t l, int64_t i) const { return numbers[static_cast<size_t>(l * length + i)]; }
};

Lines rows_of(const Tensor64& x) {
  const int64_t n = x.shape.back();
  return {static_cast<int64_t>(x.values.size()) / n, n, x.values};
}

Lines columns_of(const Tensor64& x) {
  const Lines rows = rows_of(x);
  Lines columns{rows.length, rows.count, {}};
  for (int64_t l = 0; l < columns.count; ++l)
    for (int64_t i = 0; i < columns.length; ++i) columns.numbers.push_back(rows.at(i, l));
  return columns;
}

/// The least power of two at which nothing is beyond 448.
double scale_of(double largest) {
  double scale = std::ldexp(1.0, -118);
  while (largest / scale > 448) scale *= 2;
  return scale;
}

/// To the nearest step, which is an eighth of the power of two below the number, and 2^-9 at least.
uint32_t e4m3_of(double v) {
  const double size = std::fabs(v);
  const int exponent = size == 0 ? -6 : std::max(std::ilogb(size), -6);
  const auto steps = static_cast<uint32_t>(std::nearbyint(std::ldexp(size, 3 - exponent)));
  return (std::signbit(v) ? 0x80u : 0u) | (static_cast<uint32_t>(exponent + 6) * 8 + steps);
}

/// The nearest number of 8 bits, at most the largest one.
uint32_t bits_of_8(float v, bool e5m2) {
  if (!e5m2) return e4m3_of(std::clamp(double{v}, -448.0, 448.0));
  const double size = std::min(std::fabs(double{v}), 57344.0);
  const int exponent = size == 0 ? -14 : std::max(std::ilogb(size), -14);
  const auto steps = static_cast<uint32_t>(std::nearbyint(std::ldexp(size, 2 - exponent)));
  return (std::signbit(v) ? 0x80u : 0u) | (static_cast<uint32_t>(exponent + 14) * 4 + steps);
}

void add_words(const std::vector<uint32_t>& bytes, const Shape& shape, Outputs& out) {
  Tensor64 words{shape, {}};
  for (size_t i = 0; i < bytes.size(); i += 4)
    words.values.push_back(bytes[i] | bytes[i + 1] << 8 | bytes[i + 2] << 16 | bytes[i + 3] << 24);
  out.push_back(std::move(words));
}

/// With one scale, which is computed in f32.
void add_form_of_tensor(const Lines& lines, const Tensor64& source, const Attrs& attrs, Outputs& out) {
  const bool e5m2 = attrs.flag("e5m2");
  const auto largest = static_cast<float>(*std::max_element(source.values.begin(), source.values.end()));
  const float scale = attrs.flag("delayed") ? largest == 0 ? 1 : largest : (e5m2 ? 57344.0f : 448.0f) / largest;
  const QuantisedShapes shapes = quantised_shapes(lines.count, lines.length, false, true);
  const int64_t padded = padded_line(lines.length);
  std::vector<uint32_t> bytes(static_cast<size_t>(lines.count * padded), 0);
  for (int64_t l = 0; l < lines.count; ++l)
    for (int64_t i = 0; i < lines.length; ++i)
      bytes[static_cast<size_t>(l * padded + i)] = bits_of_8(static_cast<float>(lines.at(l, i)) * scale, e5m2);
  add_words(bytes, shapes.words, out);
  out.push_back({{1}, {double{1.0f / scale}}});
}

/// Appends the words and scales of one form, by rows or by columns, to the outputs. `squares`: squares share scales.
void add_form(const Lines& lines, bool squares, Outputs& out) {
  const QuantisedShapes shapes = quantised_shapes(lines.count, lines.length, squares);
  const int64_t together = squares ? kScaledTogether : 1, padded = padded_line(lines.length);
  std::vector<uint32_t> bytes(static_cast<size_t>(lines.count * padded), 0);
  Tensor64 scales = make(shapes.scales, [](const Index&) { return 1.0; });
  for (int64_t first = 0; first < lines.count; first += together) {
    for (int64_t begin = 0; begin < lines.length; begin += kScaledTogether) {
      const int64_t last = std::min(first + together, lines.count),
                    end = std::min(begin + kScaledTogether, lines.length), part = begin / kScaledTogether;
      double largest = 0;
      for (int64_t l = first; l < last; ++l)
        for (int64_t i = begin; i < end; ++i) largest = std::max(largest, std::fabs(lines.at(l, i)));
      const double scale = scale_of(largest);
      const int64_t place = squares ? first / together * shapes.scales[1] + part : part * lines.count + first;
      scales.values[static_cast<size_t>(place)] = scale;
      for (int64_t l = first; l < last; ++l)
        for (int64_t i = begin; i < end; ++i)
          bytes[static_cast<size_t>(l * padded + i)] = e4m3_of(lines.at(l, i) / scale);
    }
  }
  add_words(bytes, shapes.words, out);
  out.push_back(std::move(scales));
}

/// The forms of x that the attrs ask for, after the fused operation, and the sums over the rows.
Outputs quantise(const NaiveCall& call) {
  Attrs steps = call.attrs;
  Epilogue epilogue = epilogue_of(steps);
  const bool bias_grad = epilogue.bias_grad;
  epilogue.bias_grad = false;
  set_epilogue(steps, epilogue);
  const Tensor64 x = with_epilogue(call.in[0], call.in, steps)[0];
  Outputs out;
  const auto add = [&](const Lines& lines) {
    if (call.attrs.flag("tensor"))
      add_form_of_tensor(lines, call.in[1], call.attrs, out);
    else
      add_form(lines, call.attrs.flag("squares"), out);
  };
  if (call.attrs.flag("rows")) add(rows_of(x));
  if (call.attrs.flag("columns")) add(columns_of(x));
  if (!bias_grad) return out;
  const Lines columns = columns_of(x);
  out.push_back(make({columns.count}, [&](const Index& at_db) {
    double sum = 0;
    for (int64_t i = 0; i < columns.length; ++i) sum += columns.at(at_db[0], i);
    return sum;
  }));
  return out;
}

/// A case whose outputs follow from the attrs.
KernelCase case_of(Shape x, DType type, const Attrs& attrs) {
  const int64_t n = x.back(), rows = num_elements(x) / n;
  KernelCase row{.kernel = "quantise", .in = {CaseOperand{.shape = std::move(x), .dtype = type}}, .attrs = attrs};
  const auto add = [&](int64_t lines, int64_t length) {
    const QuantisedShapes shapes = quantised_shapes(lines, length, attrs.flag("squares"), attrs.flag("tensor"));
    const CaseOperand::Fill fill = attrs.flag("e5m2") ? CaseOperand::Fill::e5m2 : CaseOperand::Fill::e4m3;
    row.out.push_back({.shape = shapes.words, .fill = fill, .dtype = DType::i32});
    row.out.push_back(unwritten(shapes.scales));
  };
  if (attrs.flag("rows")) add(rows, n);
  if (attrs.flag("columns")) add(n, rows);
  row.f32_on_cpu = type == DType::bf16;
  return row;
}

/// A number near the middle of two steps may be rounded to either, and a step is an eighth of it.
constexpr double kOneStep = 0.126;

KernelCase fused_case_of(const Shape& x, DType type, const Attrs& forms, const Epilogue& epilogue, DType sums) {
  KernelCase row = case_of(x, type, forms);
  if (epilogue.slope != Activation::none) row.in.push_back({.shape = x, .dtype = type});
  if (epilogue.bias_grad) row.out.push_back({.shape = {x.back()}, .dtype = sums, .accumulate = true});
  set_epilogue(row.attrs, epilogue);
  row.tolerance = kOneStep;
  row.f32_on_cpu = type == DType::bf16 || sums == DType::bf16;
  return row;
}

/// Scales of whole tensors: `from` is the largest magnitude on each rank, or the delayed scale, beyond which numbers
/// are rounded to the largest one.
KernelCase case_of_tensor(const Shape& x, DType type, Attrs attrs, const CaseOperand& from, bool sums) {
  attrs.set("tensor", true);
  KernelCase row = case_of(x, type, attrs);
  row.in.push_back(from);
  if (!sums) return row;
  row.out.push_back({.shape = {x.back()}, .accumulate = true});
  set_epilogue(row.attrs, {.bias_grad = true});
  return row;
}

void add_cases_of_tensors(DType type, std::vector<KernelCase>& calls) {
  const CaseOperand maxima{.shape = {3}, .fill = CaseOperand::Fill::positive};
  for (const Shape& x : {Shape{16, 32}, Shape{3, 5, 7}, Shape{144, 272}}) {
    for (const bool e5m2 : {false, true}) {
      for (const double scale : {0.0, 3.7, 1000.0}) {
        Attrs attrs{{"rows", true}, {"delayed", true}};
        if (e5m2) attrs.set("e5m2", true);
        const CaseOperand delayed{.shape = {1}, .fill = CaseOperand::Fill::number, .number = scale};
        calls.push_back(case_of_tensor(x, type, attrs, delayed, false));
      }
      Attrs attrs{{"rows", true}, {"columns", true}};
      if (e5m2) attrs.set("e5m2", true);
      calls.push_back(case_of_tensor(x, type, attrs, maxima, false));
      calls.push_back(case_of_tensor(x, type, attrs, maxima, true));
      calls.back().tolerance = 1e-5;
    }
    calls.push_back(case_of_tensor(x, type, {{"columns", true}}, maxima, false));
  }
}

std::vector<KernelCase> quantise_kernels() {
  std::vector<KernelCase> calls;
  for (const DType type : {DType::f32, DType::bf16}) {
    for (const Attrs& attrs :
         {Attrs{{"rows", true}}, Attrs{{"columns", true}}, Attrs{{"rows", true}, {"columns", true}},
          Attrs{{"rows", true}, {"columns", true}, {"squares", true}}}) {
      for (const Shape& x : {Shape{16, 32}, Shape{3, 5, 7}, Shape{144, 272}, Shape{256, 128}})
        calls.push_back(case_of(x, type, attrs));
    }
    for (const Activation activation : {Activation::relu, Activation::gelu, Activation::gelu_tanh}) {
      for (const Attrs& forms : {Attrs{{"rows", true}}, Attrs{{"rows", true}, {"columns", true}}}) {
        calls.push_back(fused_case_of({144, 272}, type, forms, {.activation = activation}, DType::f32));
        calls.push_back(fused_case_of({144, 272}, type, forms, {.slope = activation}, DType::f32));
        calls.push_back(fused_case_of({400, 48}, type, forms, {.slope = activation, .bias_grad = true}, DType::f32));
      }
    }
    add_cases_of_tensors(type, calls);
    for (const DType sums : {DType::f32, DType::bf16})
      calls.push_back(fused_case_of({3, 5, 7}, type, {{"columns", true}}, {.bias_grad = true}, sums));
  }
  return calls;
}

}  // namespace

extern const OpCases quantise_cases = {.kernels = quantise_kernels(), .kernel_references = {{"quantise", quantise}}};

}  // namespace trainctl
