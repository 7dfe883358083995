// Cases of muon: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include <cmath>

#include "engine/ops/muon/muon_rule.h"
#include "tests/op_cases/op_cases.h"
#include "tests/op_cases/optimizer_cases.h"

namespace trainctl {
namespace {

using MuonDoubles = std::vector<double>;

MuonDoubles product_of(const MuonDoubles& a, const MuonDoubles& b, size_t m, size_t k, size_t n) {
  MuonDoubles c(m * n);
  for (size_t i = 0; i < m; ++i)
    for (size_t l = 0; l < k; ++l)
      for (size_t j = 0; j < n; ++j) c[i * n + j] += a[i * k + l] * b[l * n + j];
  return c;
}

MuonDoubles transposed(const MuonDoubles& x, size_t rows, size_t cols) {
  MuonDoubles y(x.size());
  for (size_t i = 0; i < rows; ++i)
    for (size_t j = 0; j < cols; ++j) y[j * rows + i] = x[i * cols + j];
  return y;
}

/// The five Newton-Schulz steps, computed on the matrix or its transpose, whichever is wide, as in PyTorch.
MuonDoubles orthogonal(MuonDoubles x, size_t rows, size_t cols) {
  if (rows > cols) return transposed(orthogonal(transposed(x, rows, cols), cols, rows), cols, rows);
  double squares = 0;
  for (const double v : x) squares += v * v;
  for (double& v : x) v /= std::max(std::sqrt(squares), 1e-7);
  for (int step = 0; step < 5; ++step) {
    const MuonDoubles a = product_of(x, transposed(x, rows, cols), rows, cols, rows);
    MuonDoubles b = product_of(a, a, rows, rows, rows);
    for (size_t i = 0; i < b.size(); ++i) b[i] = -4.7750 * a[i] + 2.0315 * b[i];
    const MuonDoubles bx = product_of(b, x, rows, rows, cols);
    for (size_t i = 0; i < x.size(); ++i) x[i] = 3.4445 * x[i] + bx[i];
  }
  return x;
}

/// out: weight, momentum, work space, (bf16 copy)
naive::Outputs muon(const NaiveCall& call) {
  const double momentum = call.attrs.number("momentum"), decay = call.attrs.number("weight_decay");
  const double scale = naive::clip_scale(call.in, call.attrs);
  const double rate = naive::learning_rate(call.scalars, call.attrs);
  naive::Outputs out = call.before;
  for (const WholeParameter& p : whole_parameters(call.attrs.int_lists("parameters").at(0))) {
    const auto first = static_cast<size_t>(p.first);
    MuonDoubles u;
    for (size_t i = first; i < first + static_cast<size_t>(p.size()); ++i) {
      const double g = scale * call.in[0].values[i];
      double& m = out[1].values[i];
      m = momentum * m + (1 - momentum) * g;
      u.push_back(call.attrs.flag("nesterov") ? g + momentum * (m - g) : m);
    }
    const MuonDoubles turned = orthogonal(u, static_cast<size_t>(p.rows), static_cast<size_t>(p.cols));
    const auto rows = static_cast<double>(p.rows), cols = static_cast<double>(p.cols);
    const double adjust = call.attrs.flag("matches_adamw") ? 0.2 * std::sqrt(std::max(rows, cols))
                                                           : std::sqrt(std::max(1.0, rows / cols));
    for (size_t i = 0; i < turned.size(); ++i) {
      double& w = out[0].values[first + i];
      w = w * (1 - rate * decay) - rate * adjust * turned[i];
    }
  }
  if (out.size() > 3) out.back().values = out[0].values;
  return out;
}

std::vector<KernelCase> muon_kernels() {
  std::vector<KernelCase> calls;
  const std::vector<Ints> shapes = {{0, 1, 7}, {0, 8, 8}, {0, 16, 48, 768, 48, 16}, {0, 33, 21, 693, 5, 64}};
  for (const Ints& list : shapes) {
    const std::vector<WholeParameter> parameters = whole_parameters(list);
    const int64_t n = parameters.back().first + parameters.back().size();
    int64_t work = 0;
    for (const WholeParameter& p : parameters) work = std::max(work, MuonSpace(p).end);
    for (const OptimizerCall& each : optimizer_calls()) {
      // One size is enough: only the options of these cases are used, with the sizes of the matrices above.
      if (each.n != 7) continue;
      OptimizerCall of = each;
      of.n = n;
      const Attrs attrs{{"momentum", 0.95},
                        {"nesterov", each.flag},
                        {"matches_adamw", !each.flag},
                        {"weight_decay", each.weight_decay},
                        {"clip_norm", each.clip_norm},
                        {"parameters", std::vector<Ints>{list}}};
      KernelCase call = of.kernel_case("muon_update", {CaseOperand{}}, attrs);
      call.out.insert(call.out.begin() + 2,
                      CaseOperand{.shape = {work}, .fill = CaseOperand::Fill::work, .dtype = DType::i32});
      call.tolerance = 3e-2;  // products of a GPU are in bf16
      calls.push_back(call);
    }
  }
  return calls;
}

}  // namespace

extern const OpCases muon_cases = {.kernels = muon_kernels(), .kernel_references = {{"muon_update", muon}}};

}  // namespace trainctl
