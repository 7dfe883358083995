// C[.., m, n] = sum_k A[.., m, k] * B[k, n], or B[.., k, n] with the same leading dims; transpose_a and
// transpose_b swap the last two dims of an operand first. Cutting k leaves C partial over k's axes.
// The output has A's type, or that of attr out_dtype: "f32", "bf16", "f16".
// The two kernels' `takes` lists what the compiler may fuse; ops/epilogue.h defines what each step reads and writes.
#include <fmt/format.h>

#include "engine/ops/cuda/cuda_scratch.h"
#include "engine/ops/elementwise.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/grad_builder.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/layer_fields.h"
#include "engine/ops/matmul/fp8_factors.h"
#include "engine/ops/matmul/skinny_products.h"
#include "engine/ops/op_family.h"

namespace trainctl {
namespace {

/// A matrix operand's last two dims, after its transpose.
struct Matrix {
  int64_t rows, cols;
};

Matrix matrix_of(const TensorInfo& info, bool transposed) {
  const int64_t rows = info.shape[info.shape.size() - 2], cols = info.shape.back();
  return transposed ? Matrix{cols, rows} : Matrix{rows, cols};
}

Shape leading_of(const TensorInfo& info) { return Shape(info.shape.begin(), info.shape.end() - 2); }

/// attr out_dtype; `otherwise` if unset.
DType out_type(const Attrs& attrs, DType otherwise) {
  const std::string name = attrs.text("out_dtype");
  return name.empty() ? otherwise : name == "f32" ? DType::f32 : name == "f16" ? DType::f16 : DType::bf16;
}

std::string operands(Infos in, const Attrs& attrs) {
  return fmt::format("{}{} times {}{}", to_string(in[0]), attrs.flag("transpose_a") ? " transposed" : "",
                     to_string(in[1]), attrs.flag("transpose_b") ? " transposed" : "");
}

/// Checks that the operands can be multiplied, and returns the shape and type of the result.
std::vector<TensorInfo> infer_matmul(Infos in, const Attrs& attrs) {
  const Epilogue epilogue = epilogue_of(attrs);
  const bool slope = epilogue.slope != Activation::none;
  const size_t fused = (epilogue.bias ? 1 : 0) + (epilogue.residual ? 1 : 0) + (slope ? 1 : 0);
  expect_inputs("matmul", in, 2 + fused, 2 + fused);
  expect_floats("matmul", in);
  expect_ndim("matmul", in[0], 2);
  expect_ndim("matmul", in[1], 2);
  const bool flat = in[1].shape.size() == 2;
  if (!flat && leading_of(in[0]) != leading_of(in[1])) {
    shape_error(fmt::format("matmul: {}: the leading dims {} and {} differ", operands(in, attrs),
                            to_string(leading_of(in[0])), to_string(leading_of(in[1]))));
  }
  if (flat && in[0].shape.size() > 2 && attrs.flag("transpose_a")) {
    shape_error(fmt::format("matmul: {}: transpose_a of more than 2 dims needs a right side with the same leading dims",
                            operands(in, attrs)));
  }
  const Matrix a = matrix_of(in[0], attrs.flag("transpose_a")), b = matrix_of(in[1], attrs.flag("transpose_b"));
  if (a.cols != b.rows) {
    shape_error(fmt::format("matmul: {}: the contracted dims are {} and {}, but must be equal", operands(in, attrs),
                            a.cols, b.rows));
  }
  TensorInfo out{leading_of(in[0]), out_type(attrs, in[0].dtype)};
  out.shape.insert(out.shape.end(), {a.rows, b.cols});
  if (epilogue.bias) expect_shape("matmul", "the bias", in[2], {b.cols});
  if (epilogue.residual) expect_shape("matmul", "the residual", in.back(), out.shape);
  if (slope) expect_shape("matmul", "the place of the slope", in.back(), out.shape);
  if (epilogue.keep_input) return {out, out};
  return {out};
}

RuleText matmul_rule(Infos in, const Attrs& attrs) {
  const std::string leading = letters(in[0].shape.size() - 2, "mkn");
  const std::string a = leading + (attrs.flag("transpose_a") ? "km" : "mk");
  const std::string b = (in[1].shape.size() == 2 ? "" : leading) + (attrs.flag("transpose_b") ? "nk" : "kn");
  const std::string out = leading + "mn";
  const Epilogue epilogue = epilogue_of(attrs);
  const bool last = epilogue.residual || epilogue.slope != Activation::none;
  return {a + "," + b + (epilogue.bias ? ",n" : "") + (last ? "," + out : "") + "->" + out +
          (epilogue.keep_input ? "," + out : "")};
}

Cost matmul_cost(Infos in, Infos out, const Attrs& attrs) {
  return traffic_cost(in, out, 2.0 * static_cast<double>(matrix_of(in[0], attrs.flag("transpose_a")).cols));
}

/// The matrices that a product writes: one, or one for each index of the leading dims that both operands have.
WrittenMatrices written(Infos in, Infos out) {
  const int64_t cols = out[0].shape.back(), all_rows = num_elements(out[0].shape) / std::max<int64_t>(cols, 1);
  if (in[1].shape.size() == 2) return {1, all_rows, cols};
  const int64_t rows = out[0].shape[out[0].shape.size() - 2];
  return {all_rows / std::max<int64_t>(rows, 1), rows, cols};
}

/// The operands with rows: A, C, and the residual or the input of a slope, if there is one.
RowOperands row_operands(const Attrs& attrs) {
  if (attrs.flag("transpose_a")) return {};
  const Epilogue epilogue = epilogue_of(attrs);
  const bool has_last = epilogue.residual || epilogue.slope != Activation::none;
  const unsigned last = !has_last ? 0u : epilogue.bias ? 8u : 4u;
  return {1u | last, epilogue.keep_input ? 3u : 1u};
}

/// Scratch memory in bytes: the workspace of cuBLASLt, and 256 bytes for alpha and beta (cublas_product_cuda.cpp).
int64_t product_scratch(const std::vector<Shape>&, const std::vector<Shape>&) { return kProductWorkspace + 256; }

/// The cost of skinny_grads: two products with dy, which is read once.
Cost skinny_grads_cost(Infos in, Infos out, const Attrs&) {
  Cost cost = traffic_cost(in, out, 0);
  cost.flops = 4.0 * static_cast<double>(num_elements(in[0].shape) * in[2].shape.back());
  return cost;
}

/// The cost of skinny_products: each output is the product of input 0 and an operand with few columns.
Cost skinny_products_cost(Infos in, Infos out, const Attrs&) {
  Cost cost = traffic_cost(in, out, 0);
  for (size_t i = 1; i < in.size(); ++i) {
    const int64_t r = std::min(in[i].shape[0], in[i].shape.back());
    cost.flops += 2.0 * static_cast<double>(num_elements(in[0].shape) * r);
  }
  return cost;
}

int64_t skinny_scratch(const Shape& large, int64_t features, int weight_results) {
  const int64_t n = large.back(), rows = num_elements(large) / std::max<int64_t>(n, 1);
  const SkinnyParts parts(rows, n, features);
  return std::max(kProductWorkspace + 256, (parts.dx_floats(rows) + weight_results * parts.dw_floats(n)) * 4);
}

std::vector<TensorInfo> skinny_grads_outputs(Infos in, const Attrs&, DType dtype) {
  const int64_t n = in[0].shape.back(), r = in[2].shape.back();
  example::expect_shape({example::leading(in[2])}, example::leading(in[0]), "what leads x");
  example::expect_shape(in[1], {n, r}, "the weight");
  return {{in[2].shape, dtype}, {{n, r}, DType::f32}};
}

std::vector<TensorInfo> skinny_products_outputs(Infos in, const Attrs&, DType dtype) {
  std::vector<TensorInfo> out;
  for (const TensorInfo& a : in.subspan(1)) {
    example::expect_shape(a, {in[1].shape[0], in[0].shape.back()}, "a");
    out.push_back({example::leading(in[0]), dtype});
    out.back().shape.push_back(a.shape[0]);
  }
  return out;
}

std::vector<TensorInfo> skinny_weight_grads_outputs(Infos in, const Attrs&, DType) {
  std::vector<TensorInfo> out;
  for (const TensorInfo& dp : in.subspan(1)) {
    example::expect_shape({example::leading(dp)}, example::leading(in[0]), "what leads dp");
    out.push_back({{dp.shape.back(), in[0].shape.back()}, DType::f32});
  }
  return out;
}

void expect_weight_grad(Infos in) {
  example::expect(in.size() == 2, "it expects x [.., k] and dy [.., n]");
  example::expect_shape({example::leading(in[1])}, example::leading(in[0]), "what leads dy");
}

Attrs transposes(bool a, bool b) { return {{"transpose_a", a}, {"transpose_b", b}}; }

void matmul_backward(GradBuilder& g) {
  const bool ta = g.attrs().flag("transpose_a"), tb = g.attrs().flag("transpose_b");
  const TensorId a = g.in(0), b = g.in(1), dc = g.out_grad();
  if (ta) {
    g.set_in_grad(0, "matmul", {b, dc}, transposes(tb, true));
  } else {
    g.set_in_grad(0, "matmul", {dc, b}, transposes(false, !tb));
  }
  if (g.shape(b).size() == 2 && !ta) {
    // A weight's gradient is f32 regardless of the weight's type; an activation's has its type.
    Attrs attrs{{"kn", !tb}};
    if (is_half(g.dtype(b)) && !g.is_parameter(b)) attrs.set("out_dtype", std::string(to_string(g.dtype(b))));
    g.set_in_grad(1, "matmul_weight_grad", {a, dc}, attrs);
    return;
  }
  Attrs attrs = tb ? transposes(true, ta) : transposes(!ta, false);
  if (is_half(g.dtype(b)) && g.is_parameter(b)) attrs.set("out_dtype", std::string("f32"));
  g.set_in_grad(1, "matmul", tb ? std::vector<TensorId>{dc, a} : std::vector<TensorId>{a, dc}, attrs);
}

TensorId emit_matmul(LayerContext& layer) {
  const bool ta = layer.attrs.flag("transpose_a"), tb = layer.attrs.flag("transpose_b");
  if (layer.inputs.size() == 2) {
    if (layer.inputs[0] == layer.inputs[1]) {
      shape_error("a matmul of a tensor with itself is not supported; put a reshape layer before one of the inputs");
    }
    return layer.emit("matmul", transposes(ta, tb));
  }
  const Shape& in = layer.shape();
  if (in.size() < 2) {
    shape_error(fmt::format("matmul needs an input of at least 2 dims, but got {}", to_string(in)));
  }
  if (ta && layer.batch().is_sized(in.size() - 2)) {
    throw ShapeError(
        fmt::format("transpose_a makes the batch of {} the contracted dim, so the shape of the weight would depend "
                    "on the batch; remove transpose_a, or give a second input in place of units",
                    to_string(in)),
        "transpose_a");
  }
  const int64_t k = ta ? in[in.size() - 2] : in.back(), n = layer.attrs.integer("units");
  const TensorId w = layer.weight(tb ? Shape{n, k} : Shape{k, n}, linear_init(k), Fans{k, n});
  return layer.builder.emit("matmul", {layer.inputs[0], w}, transposes(ta, tb))[0];
}

}  // namespace

extern const OpDef matmul_op = {
    .name = "matmul",
    .infer = infer_matmul,
    .rule = matmul_rule,
    .backward = matmul_backward,
    .kernel = {.name = "matmul",
               .accumulates = 1,
               .takes = bits(EpilogueStep::bias, EpilogueStep::residual, EpilogueStep::activation, EpilogueStep::slope),
               .is_product = true,
               .row_operands = row_operands,
               .launch_role = LaunchRole::product,
               .cost = matmul_cost,
               .written = written,
               .most_cuda_scratch = product_scratch,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{
                         .what = "C[m,n] = A[m,k] B[k,n] (+ bias[n])",
                         .inputs = {{{1024, 1024}}, {{1024, 1024}}},
                         .optional = {{"transpose_a", true}, {"transpose_b", true}, {"out_dtype", std::string("f32")}}};
                   }},
};

/// (x [.., k], dy [.., n]) -> dw [n, k], or [k, n] with attr kn; sums over all leading dims. f32, or attr
/// out_dtype. With attr bias_grad also db [n], dy summed over all leading dims. With attr first_row
/// (compile/fuse/make_in_pieces.cpp) only some rows of dw, starting with that one.
extern const OpDef matmul_weight_grad_op = {
    .name = "matmul_weight_grad",
    .infer = [](Infos in, const Attrs& attrs) -> std::vector<TensorInfo> {
      expect_inputs("matmul_weight_grad", in, 2, 2);
      expect_ndim("matmul_weight_grad", in[0], 1);
      expect_ndim("matmul_weight_grad", in[1], 1);
      const int64_t k = in[0].shape.back(), n = in[1].shape.back();
      const TensorInfo dw{attrs.flag("kn") ? Shape{k, n} : Shape{n, k}, out_type(attrs, DType::f32)};
      if (epilogue_of(attrs).bias_grad) return {dw, {{n}, dw.dtype}};
      return {dw};
    },
    .kernel = {.name = "matmul_weight_grad",
               .accumulates = 3,
               .takes = bits(EpilogueStep::bias_grad, EpilogueStep::descend),
               .is_product = true,
               .makes_rows = true,
               .row_operands =
                   [](const Attrs&) {
                     return RowOperands{3, 0};
                   },
               .launch_role = LaunchRole::weight_grad,
               .cost =
                   [](Infos in, Infos out, const Attrs&) {
                     return traffic_cost(in, out,
                                         2.0 * static_cast<double>(num_elements(in[0].shape) / in[0].shape.back()));
                   },
               .written =
                   [](Infos, Infos out) {
                     return WrittenMatrices{1, out[0].shape[0], out[0].shape[1]};
                   },
               .most_cuda_scratch = product_scratch,
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "dW[n,k] = dY[m,n]^T X[m,k]; inputs X, dY",
                                          .inputs = {{{1024, 1024}}, {{1024, 1024}}},
                                          .optional = {{"kn", true}, {"out_dtype", std::string("bf16")}},
                                          .expect = expect_weight_grad};
                   }},
};

extern const KernelDef skinny_grads_kernel = {
    .name = "skinny_grads",
    .accumulates = 2,
    .has_products = true,
    .cost = skinny_grads_cost,
    .most_cuda_scratch = [](const std::vector<Shape>& in, const std::vector<Shape>&) -> int64_t {
      return skinny_scratch(in[0], in[2].back(), 1);
    },
    .example =
        [] {
          using namespace example;
          return KernelExample{.what = "dX[m,r] = dY[m,n] W[n,r]; dW[n,r] = dY^T X[m,r]; inputs dY, W, X",
                               .inputs = {{{1024, 1024}}, {{1024, 16}}, {{1024, 16}}},
                               .optional = {{"factor", 2.0}},
                               .outputs = skinny_grads_outputs};
        },
};

extern const KernelDef skinny_products_kernel = {
    .name = "skinny_products",
    .has_products = true,
    .cost = skinny_products_cost,
    .most_cuda_scratch = [](const std::vector<Shape>& in, const std::vector<Shape>& out) -> int64_t {
      return skinny_scratch(in[0], out[0].back() * static_cast<int64_t>(out.size()), 0);
    },
    .example =
        [] {
          using namespace example;
          return KernelExample{.what = "P[m,r] = X[m,n] A[r,n]^T for each A; inputs X, A, ..",
                               .inputs = {{{1024, 1024}}, {{16, 1024}}, {{16, 1024}}},
                               .optional = {{"factor", 2.0}},
                               .outputs = skinny_products_outputs};
        },
};

extern const KernelDef skinny_weight_grads_kernel = {
    .name = "skinny_weight_grads",
    .accumulates = (1u << kMostSkinny) - 1,
    .has_products = true,
    .cost = skinny_products_cost,
    .most_cuda_scratch = [](const std::vector<Shape>& in, const std::vector<Shape>& out) -> int64_t {
      return skinny_scratch(in[0], out[0][0] * static_cast<int64_t>(out.size()), 1);
    },
    .example =
        [] {
          using namespace example;
          return KernelExample{.what = "dA[r,n] = dP[m,r]^T X[m,n] for each dP; inputs X, dP, ..",
                               .inputs = {{{1024, 1024}}, {{1024, 16}}, {{1024, 16}}},
                               .outputs = skinny_weight_grads_outputs};
        },
};

extern const LayerDef matmul_layer = {
    .name = "matmul",
    .doc = "Matrix product: x w with its own weight of [features, units], or the product of two inputs.",
    .fields = {units_field(), flag("transpose_a", false, "Transpose the last two dims of the first input."),
               flag("transpose_b", false, "Transpose the last two dims of the second input."), init_field()},
    .min_inputs = 1,
    .max_inputs = 2,
    .weight_field = "units",
    .emit = emit_matmul,
};

extern const OpFamily matmul_family = {
    .ops = {&matmul_op, &matmul_weight_grad_op},
    .kernels = {&matmul_fp8_kernel, &skinny_grads_kernel, &skinny_products_kernel, &skinny_weight_grads_kernel},
    .layers = {&matmul_layer}};

}  // namespace trainctl
