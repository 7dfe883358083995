// Cases of moves: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

/// out[i] = in[from(first, second, inner)], over blocks of attr inner elements.
Tensor64 moved(const Tensor64& in, const Attrs& attrs, const Shape& shape, int64_t first, int64_t second,
               int64_t (*from)(int64_t i, int64_t j, int64_t outer, int64_t parts)) {
  const int64_t outer = attrs.integer("outer"), parts = attrs.integer("parts"), inner = attrs.integer("inner");
  Tensor64 out = zeros(shape);
  size_t to = 0;
  for (int64_t i = 0; i < first; ++i)
    for (int64_t j = 0; j < second; ++j)
      for (int64_t e = 0; e < inner; ++e) out.values[to++] = in.values[from(i, j, outer, parts) * inner + e];
  return out;
}

Outputs pack(const NaiveCall& call) {
  return {moved(call.in[0], call.attrs, call.in[0].shape, call.attrs.integer("parts"), call.attrs.integer("outer"),
                [](int64_t p, int64_t o, int64_t, int64_t parts) { return o * parts + p; })};
}

Outputs unpack(const NaiveCall& call) {
  return {moved(call.in[0], call.attrs, call.in[0].shape, call.attrs.integer("outer"), call.attrs.integer("parts"),
                [](int64_t o, int64_t p, int64_t outer, int64_t) { return p * outer + o; })};
}

Outputs copy_slice(const NaiveCall& call) {
  const int64_t inner = call.attrs.integer("inner"), parts = call.attrs.integer("parts");
  Tensor64 out = zeros(call.before[0].shape);
  for (size_t i = 0; i < out.values.size(); ++i) {
    const int64_t o = static_cast<int64_t>(i) / inner, e = static_cast<int64_t>(i) % inner;
    out.values[i] = call.in[0].values[(o * parts + call.attrs.integer("index")) * inner + e];
  }
  return {out};
}

Outputs accumulate(const NaiveCall& call) {
  Tensor64 sum = call.before[0];
  for (size_t i = 0; i < sum.values.size(); ++i) sum.values[i] += call.in[0].values[i];
  return {sum};
}

Attrs parts(int64_t outer, int64_t count, int64_t inner) {
  return {{"outer", outer}, {"parts", count}, {"inner", inner}, {"index", count - 1}};
}

std::vector<KernelCase> moves_kernels() {
  struct Sizes {
    int64_t outer, count, inner;
  };
  std::vector<KernelCase> calls;
  const auto add = [&](const char* kernel, const CaseOperand& in, const CaseOperand& out, const Attrs& attrs,
                       double tolerance = 0) {
    calls.push_back({kernel, {in}, {out}, attrs, tolerance});
    calls.back().f32_on_cpu = in.dtype == DType::bf16 || out.dtype == DType::bf16;
  };
  for (const Sizes& s : {Sizes{2, 3, 4}, Sizes{1, 1, 5}, Sizes{7, 5, 3}, Sizes{130, 4, 64}, Sizes{3, 2, 20011}}) {
    const Shape all{s.outer * s.count * s.inner}, one{s.outer * s.inner};
    const Attrs attrs = parts(s.outer, s.count, s.inner);
    const CaseOperand bf16{.shape = all, .dtype = DType::bf16};
    add("pack", {all}, unwritten(all), attrs);
    add("unpack", {all}, unwritten(all), attrs);
    add("copy_slice", {all}, unwritten(one), attrs);
    add("pack", bf16, unwritten(all, DType::bf16), attrs);
    add("copy_slice", bf16, unwritten(one, DType::bf16), attrs);
    add("copy_slice", bf16, unwritten(one), attrs);
    add("copy_slice", {all}, unwritten(one, DType::bf16), attrs, 4e-3);
  }
  for (const int64_t n : {1, 7, 37, 4096, 70001}) {
    add("accumulate", {{n}}, {{n}}, {});
    add("accumulate", {.shape = {n}, .dtype = DType::bf16}, {{n}}, {});
    calls.push_back({"zero", {}, {{{n}}}});
  }
  return calls;
}

}  // namespace

extern const OpCases moves_cases = {
    .kernels = moves_kernels(),
    .kernel_references = {{"pack", pack},
                          {"unpack", unpack},
                          {"copy_slice", copy_slice},
                          {"accumulate", accumulate},
                          {"zero", [](const NaiveCall& call) { return Outputs{zeros(call.before[0].shape)}; }}},
};

}  // namespace trainctl
