// A chain of element-wise ops in one pass over memory: the compiler fuses consecutive element-wise ops into it.
#include <fmt/format.h>

#include <algorithm>

#include "engine/ops/elementwise/expression.h"
#include "engine/ops/examples.h"
#include "engine/ops/op_family.h"
#include "engine/ops/program_kernels.h"

namespace trainctl {
namespace {

/// Checks the factors of a product: p [.., r], and q [n, r] (`nr`) or [r, n], for outputs [.., n].
void expect_factors(const TensorInfo& out, const TensorInfo& p, const TensorInfo& q, bool nr) {
  using namespace example;
  Shape rows = out.shape;
  rows.back() = p.shape.back();
  expect_shape(p, rows, "a product's first factor");
  const Shape second = nr ? Shape{out.shape.back(), rows.back()} : Shape{rows.back(), out.shape.back()};
  expect_shape(q, second, "a product's second factor");
}

/// The outputs: each output that the expression writes is like the first input.
std::vector<TensorInfo> written(Infos in, const Attrs& attrs, DType) {
  using namespace example;
  const std::string text = attrs.text("expression");
  expect(is_expression(text), "'" + text + "' is not an expression");
  int inputs = 0, outputs = 0;
  for (const ElementwiseToken& token : parse_expression(text)) {
    const bool reads = token.op == ElementwiseOp::input || token.op == ElementwiseOp::row;
    const size_t size = static_cast<size_t>(token.index);
    if (is_product(token.op)) {
      inputs = std::max(inputs, token.index + 2);
      if (size + 1 < in.size()) expect_factors(in[0], in[size], in[size + 1], token.op == ElementwiseOp::product_nr);
    }
    if (reads) inputs = std::max(inputs, token.index + 1);
    if (token.op == ElementwiseOp::output) outputs = std::max(outputs, token.index + 1);
    if (!reads || size >= in.size()) continue;
    const bool row = token.op == ElementwiseOp::row;
    expect_shape(in[size], row ? Shape{in[0].shape.back()} : in[0].shape, row ? "a row" : "an input");
  }
  expect(static_cast<size_t>(inputs) == in.size(), fmt::format("'{}' reads {} inputs", text, inputs));
  return std::vector<TensorInfo>(static_cast<size_t>(outputs), in[0]);
}

}  // namespace

extern const KernelDef elementwise_kernel = {
    .name = "elementwise",
    .in_place = InPlace::only_on_alike,
    .example =
        [] {
          using namespace example;
          return KernelExample{.what = "a chain of ops in one pass: ops/elementwise/expression.h",
                               .inputs = {{kMatrix}, {kRow}},
                               .attrs = {{"expression", std::string("x0 b1 + gelu =0")}},
                               .outputs = written};
        },
};

extern const OpFamily elementwise_family = {.ops = {}, .kernels = {&elementwise_kernel}};

}  // namespace trainctl
