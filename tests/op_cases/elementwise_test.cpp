// Tests of the expressions of element-wise chains, and of the CPU kernel that evaluates them: its bits are those of the
// single kernels.
#include <doctest/doctest.h>

#include <vector>

#include "engine/ops/elementwise/expression.h"
#include "engine/ops/kernel.h"
#include "engine/ops/random.h"
#include "tests/op_cases/allocations.h"

namespace trainctl {
namespace {

using ElementwiseFloats = std::vector<float>;

/// A layout: rows 1 to 3 and columns 4 to 40 of a tensor [5, 700], or sizes around those of the kernel's blocks.
struct Layout {
  Shape shape, whole, offset;
};

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> table = {{{3, 37}, {5, 700}, {1, 4}},
                                            {{1, 1}, {1, 1}, {0, 0}},
                                            {{4, 512}, {4, 512}, {0, 0}},
                                            {{5, 700}, {5, 700}, {0, 0}},
                                            {{2, 513}, {2, 2052}, {0, 513}}};
  return table;
}

ElementwiseFloats elementwise_random_floats(int64_t n, uint64_t key) {
  ElementwiseFloats values(static_cast<size_t>(n));
  for (size_t i = 0; i < values.size(); ++i) values[i] = 4.0f * philox_uniform(key, i, 0) - 2.0f;
  return values;
}

class Calls {
 public:
  explicit Calls(const Layout& layout) : layout_(layout) {}

  TensorArg arg(ElementwiseFloats& values, bool accumulate = false) const {
    TensorArg a{values.data(), DType::f32, layout_.shape, layout_.whole, layout_.offset};
    const int64_t columns = layout_.shape.back();
    if (static_cast<int64_t>(values.size()) != num_elements(layout_.shape)) {
      a.shape = a.global_shape = {columns};
      a.offset = {0};
    }
    a.accumulate = accumulate;
    return a;
  }

  void run(const std::string& op, std::vector<TensorArg> in, std::vector<TensorArg> out, Attrs attrs = {}) const {
    static const StepScalars scalars{.step = 7};
    KernelCall call{std::move(in), std::move(out), std::move(attrs), &scalars};
    call.micro_batch = 2;
    call.seed = 11;
    find_cpu_kernel(op)->prepare(call)();
  }

 private:
  const Layout& layout_;
};

}  // namespace

TEST_CASE("an expression is read token by token") {
  const std::vector<ElementwiseToken> tokens = parse_expression("x0 b1 + :0 =0 $0 gelu dropout(0.25,-3) =1");
  REQUIRE(tokens.size() == 9);
  CHECK(tokens[1].op == ElementwiseOp::row);
  CHECK(tokens[1].index == 1);
  CHECK(tokens[3].op == ElementwiseOp::name);
  CHECK(tokens[7].op == ElementwiseOp::dropout);
  CHECK(tokens[7].p == 0.25);
  CHECK(tokens[7].key == -3);
  CHECK(tokens[8].index == 1);
  CHECK(tokens[7].batch.micro_batches == 1);
  const BatchPlace batch = parse_expression("x0 dropout(0.25,-3,4,1,2) =0")[1].batch;
  CHECK(batch.micro_batches == 4);
  CHECK(batch.dim == 1);
  CHECK(batch.outer == 2);
}

TEST_CASE("text that is not an expression, or exceeds the limits, is rejected") {
  for (const char* text : {"",
                           "x0",
                           "=0",
                           "x0 x1 =0",
                           "x0 + =0",
                           "x0 =0 x0 =0",
                           "x0 =1",
                           "$0 =0",
                           "x0 cosh =0",
                           "x8 =0",
                           "x0 =4",
                           "x-1 =0",
                           "x0  =0",
                           "x0 =0 ",
                           "x =0",
                           "x0 dropout(0.5) =0",
                           "x0 dropout(a,1) =0",
                           "x0 :2 =0",
                           "x0 x0 x0 x0 x0 + + + + =0",
                           "x0 dropout(0.5,1,4) =0",
                           "x0 dropout(0.5,1,0,0,1) =0",
                           "x0 dropout(0.5,1,2,-1,1) =0"}) {
    CHECK_MESSAGE(!is_expression(text), std::string(text));
  }
  CHECK(is_expression("x0 x0 x0 x0 + + + =0"));
}

TEST_CASE("a chain gives the bits of its single kernels for every size, offset and output memory") {
  const Attrs dropout{{"p", 0.3}, {"key", int64_t{-77}}}, tanh{{"approximate", std::string("tanh")}};
  for (const Layout& layout : layouts()) {
    CAPTURE(to_string(layout.shape));
    const Calls calls(layout);
    const int64_t n = num_elements(layout.shape);
    ElementwiseFloats x = elementwise_random_floats(n, 1), z = elementwise_random_floats(n, 2),
                      dy = elementwise_random_floats(n, 3);
    ElementwiseFloats bias = elementwise_random_floats(layout.shape.back(), 4);
    ElementwiseFloats a(x), b(x), c(x), out(x), second(x);

    calls.run("add_bias", {calls.arg(x), calls.arg(bias)}, {calls.arg(a)});
    calls.run("gelu", {calls.arg(a)}, {calls.arg(b)});
    calls.run("dropout", {calls.arg(b)}, {calls.arg(c)}, dropout);
    calls.run("add", {calls.arg(c), calls.arg(z)}, {calls.arg(c)});
    calls.run("elementwise", {calls.arg(x), calls.arg(bias), calls.arg(z)}, {calls.arg(out), calls.arg(second)},
              {{"expression", "x0 b1 + :0 =0 $0 gelu dropout(0.3,-77) x2 + =1"}});
    CHECK(out == a);
    CHECK(second == c);

    calls.run("dropout", {calls.arg(b)}, {calls.arg(c)}, {{"p", 0.3}, {"key", int64_t{-77}}, {"batch", Ints{3, 1, 1}}});
    calls.run("elementwise", {calls.arg(b)}, {calls.arg(out)}, {{"expression", "x0 dropout(0.3,-77,3,1,1) =0"}});
    CHECK(out == c);

    calls.run("relu_grad", {calls.arg(dy), calls.arg(x)}, {calls.arg(a)});
    calls.run("sigmoid_grad", {calls.arg(a), calls.arg(z)}, {calls.arg(a)});
    calls.run("tanh_grad", {calls.arg(a), calls.arg(z)}, {calls.arg(a)});
    calls.run("gelu_grad", {calls.arg(a), calls.arg(x)}, {calls.arg(a)}, tanh);
    calls.run("gelu_grad", {calls.arg(a), calls.arg(x)}, {calls.arg(a)});
    calls.run("mul", {calls.arg(a), calls.arg(bias)}, {calls.arg(a)});
    ElementwiseFloats over = dy;
    calls.run("elementwise", {calls.arg(over), calls.arg(x), calls.arg(z), calls.arg(bias)}, {calls.arg(over)},
              {{"expression", "x0 x1 relu_grad x2 sigmoid_grad x2 tanh_grad x1 gelu_tanh_grad x1 gelu_grad b3 * =0"}});
    CHECK(over == a);

    calls.run("relu", {calls.arg(x)}, {calls.arg(a)});
    calls.run("sigmoid", {calls.arg(a)}, {calls.arg(b)});
    calls.run("tanh", {calls.arg(b)}, {calls.arg(b)});
    calls.run("gelu", {calls.arg(b)}, {calls.arg(b)}, tanh);
    calls.run("mul", {calls.arg(a), calls.arg(b)}, {calls.arg(b)});
    ElementwiseFloats sum = z, expected = z;
    calls.run("accumulate", {calls.arg(b)}, {calls.arg(expected)});
    calls.run("elementwise", {calls.arg(x)}, {calls.arg(sum, true)},
              {{"expression", "x0 relu :0 $0 sigmoid tanh gelu_tanh * =0"}});
    CHECK(sum == expected);
  }
}

TEST_CASE("a chain runs without allocating") {
  const Calls calls(layouts()[3]);
  ElementwiseFloats x = elementwise_random_floats(3500, 1), y(x);
  KernelCall call{{calls.arg(x)}, {calls.arg(y)}, {{"expression", "x0 relu sigmoid =0"}}};
  const CpuKernel kernel = find_cpu_kernel("elementwise")->prepare(call);
  const int64_t before = allocations();
  kernel();
  CHECK(allocations() == before);
}

}  // namespace trainctl
