// A chain of element-wise ops as text: the compiler writes it (compile/fuse_elementwise), the kernels named
// `elementwise` evaluate it in one pass over memory. Postfix: a token takes its operands from a stack and pushes
// its result.
//
//   expression := token (" " token)*
//   token := "x" k      push element i of input k, which is as large as the outputs
//          | "b" k      push element i mod n of input k, n its size: a row that repeats along the leading dims
//          | ":" k      name the top of the stack k; it stays there
//          | "$" k      push what is named k
//          | "=" k      pop, and write to output k (add to it, where the output accumulates)
//          | "+" | "*"
//          | "relu" | "sigmoid" | "tanh" | "gelu" | "gelu_tanh"
//          | "relu_grad" | "sigmoid_grad" | "tanh_grad"      of dy and y, y on top
//          | "gelu_grad" | "gelu_tanh_grad"                  of dy and x, x on top
//          | "dropout(" p "," key ")"                        as the op's attrs; element i of output 0 counts
//
//   x0 b1 + relu x2 * =0              (relu(in0 + in1)) * in2 -> out0
//   x0 x1 + :0 =0 $0 gelu =1          the sum is kept beside its gelu
//
// The stack is empty at the end and each output is written once. Where there is one output it may lie on an "x"
// input: an element's inputs are all read before "=0". All "x" inputs and outputs have one shape and one place in
// their whole. Operands are f32 or bf16 as their dtype says; what is between them is f32 and never rounded.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trainctl {

enum class ElementwiseOp : uint8_t {
  input,   ///< x k
  row,     ///< b k
  name,    ///< : k
  named,   ///< $ k
  output,  ///< = k
  add,
  mul,
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
  dropout,
};

struct ElementwiseToken {
  ElementwiseOp op = ElementwiseOp::add;
  int index = 0;    ///< of x, b, :, $ and =
  double p = 0;     ///< dropout
  int64_t key = 0;  ///< dropout
};

/// No expression goes beyond these, so that a kernel can hold its state in registers and its tokens in arguments.
inline constexpr int kMostElementwiseInputs = 8, kMostElementwiseOutputs = 4, kMostElementwiseNames = 2,
                     kMostElementwiseDepth = 4, kMostElementwiseTokens = 40;

/// Fails (check) where the text is no expression, or is one beyond the limits.
std::vector<ElementwiseToken> parse_expression(std::string_view text);

/// Whether its stack, names and tokens are within the limits, and it is an expression at all.
bool is_expression(std::string_view text);

}  // namespace trainctl
