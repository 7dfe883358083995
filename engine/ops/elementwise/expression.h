// A chain of element-wise ops as text: written by the compiler (compile/fuse_elementwise) and evaluated in one pass
// over memory by the kernels named `elementwise`. Postfix: a token pops its operands from a stack and pushes its
// result.
//
//   expression := token (" " token)*
//   token := "x" k      push element i of input k, which is as large as the outputs
//          | "b" k      push element i mod n of input k, n its size: a row that repeats along the leading dims
//          | "l" k      push element (i / n, i mod n) of the product of input k, [.., r], and the transpose of input
//                       k + 1, [n, r]; n is the last dim of the outputs
//          | "m" k      the same for the product of inputs k, [.., r], and k + 1, [r, n]
//          | ":" k      name the top of the stack k; it stays there
//          | "$" k      push what is named k
//          | "=" k      pop, and write to output k (add to it, where the output accumulates)
//          | "+" | "-" | "*" | "/"
//          | "relu" | "sigmoid" | "tanh" | "gelu" | "gelu_tanh"
//          | "relu_grad" | "sigmoid_grad" | "tanh_grad"      of dy and y, y on top
//          | "gelu_grad" | "gelu_tanh_grad"                  of dy and x, x on top
//          | unary | unary "(" a ["," b] ")"             a name of kUnary (ops/unary/unary.h) with its attrs, or the
//                                                     grad_name of one: of dy and x, or of dy and y
//          | "where"                                     of condition, a and b, b on top
//          | "masked_fill(" value "," invert ")"         of x and the mask, the mask on top
//          | "dropout(" p "," key ["," batch] ")"            as the op's attrs; element i of output 0 counts
//   batch := micro_batches "," dim "," outer                   BatchPlace; absent if there is one micro-batch
//
//   x0 b1 + relu x2 * =0              (relu(in0 + in1)) * in2 -> out0
//   x0 x1 + :0 =0 $0 gelu =1          the sum is an output next to its gelu
//   x0 l1 + x3 * =0                   (in0 + in1 in2^T) * in3: in1 and in2 are an adapter's
//
// The stack is empty at the end, and each output is written once. If there is only one output, it may share memory
// with an "x" input: all inputs of an element are read before "=0". All "x" inputs and outputs have the same shape
// and the same offset in their whole tensors. Operands are f32 or bf16 as their dtype says; intermediate values are
// f32 and never rounded.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/ops/batch_index.h"
#include "engine/ops/unary/unary.h"

namespace trainctl {

enum class ElementwiseOp : uint8_t {
  input,       ///< x k
  row,         ///< b k
  product_nr,  ///< l k
  product_rn,  ///< m k
  name,        ///< : k
  named,       ///< $ k
  output,      ///< = k
  add,
  sub,
  mul,
  div,
  relu,
  sigmoid,
  tanh,
  gelu,
  gelu_tanh,
  relu_grad,
  sigmoid_grad,
  tanh_grad,
  gelu_grad,
  gelu_tanh_grad,
  unary,       ///< token.function
  unary_grad,  ///< gradient of token.function
  where,
  masked_fill,  ///< parameters: the value, and 1 to fill where the mask is 0
  dropout,
};

struct ElementwiseToken {
  ElementwiseOp op = ElementwiseOp::add;
  int index = 0;        ///< index of x, b, l, m, :, $ and =
  Unary function = {};  ///< unary and unary_grad
  UnaryParameters parameters = {};
  double p = 0;           ///< dropout
  int64_t key = 0;        ///< dropout
  BatchPlace batch = {};  ///< dropout
};

/// The limits of an expression, so that a kernel can hold its state in registers and its tokens in arguments. Without
/// products it has fewer inputs.
inline constexpr int kMostElementwiseInputs = 10, kMostWithoutProducts = 8, kMostElementwiseOutputs = 4,
                     kMostElementwiseNames = 2, kMostElementwiseDepth = 4, kMostElementwiseTokens = 40;

constexpr bool is_product(ElementwiseOp op) {
  return op == ElementwiseOp::product_nr || op == ElementwiseOp::product_rn;
}

/// The token of a function, or of its gradient, with these attrs: "leaky_relu_grad(0.01)".
std::string unary_token(Unary function, bool grad, const Attrs& attrs);

/// Fails (check) if the text is not an expression or exceeds the limits.
std::vector<ElementwiseToken> parse_expression(std::string_view text);

/// True if it is a valid expression whose stack, names and tokens are within the limits.
bool is_expression(std::string_view text);

}  // namespace trainctl
