// Kernels that choose their grid by the number of multiprocessors, on a card with one: small operands use the paths of
// large ones.
#include <doctest/doctest.h>

#include "tests/cuda_emulator/library_rules.h"
#include "tests/op_cases/cuda/cuda_device.h"
#include "tests/op_cases/kernel_case_run.h"
#include "tests/skip.h"
#include "tools/cuda_emulator/device_limits.h"

namespace trainctl {

bool built_for_hopper();  // engine/ops/cuda/launch_cuda.h, whose types hide names of the graph

namespace {

constexpr double kOfBf16 = 3e-2;

class OneMultiprocessor {
 public:
  OneMultiprocessor() { emulator::multiprocessors = 1; }
  ~OneMultiprocessor() { emulator::multiprocessors = before_; }
  OneMultiprocessor(const OneMultiprocessor&) = delete;
  OneMultiprocessor& operator=(const OneMultiprocessor&) = delete;

 private:
  const int before_ = emulator::multiprocessors;
};

CaseOperand halves(Shape shape) { return {.shape = std::move(shape), .dtype = DType::bf16}; }

/// Checks that the results match the CPU, which the op cases compare with double, and that two runs have the same bits.
void check_as_on_cpu(const KernelCase& row) {
  CAPTURE(row.name());
  const KernelCaseRun run(row);
  const Results expected = run.on(cpu_device(), true, 1), got = run.on(cuda_device(), false, 1);
  REQUIRE(got.size() == expected.size());
  for (size_t o = 0; o < got.size(); ++o) CHECK(worst_part(got[o], expected[o]) <= kOfBf16);
  CHECK(run.on(cuda_device(), false, 1) == got);
}

bool is_built_for_hopper() {
  if (!built_for_hopper()) skip_test("these kernels are for Hopper");
  return built_for_hopper();
}

}  // namespace

TEST_CASE("a block of a chain with products passes over many rows, the last pass with a part of them") {
  if (!is_built_for_hopper()) return;
  const OneMultiprocessor card;
  for (const int64_t terms : {16, 32, 64}) {
    for (const int64_t rows : {16 * 24, 16 * 36 + 5, 16 * 90 + 1}) {  // 2, 3 and as many passes as there is room for
      const CaseOperand x = halves({rows, 32}), p = halves({rows, terms}), l = halves({32, terms}),
                        m = halves({terms, 32});
      const CaseOperand out = unwritten({rows, 32}, DType::bf16);
      const auto check_chain = [&](std::vector<CaseOperand> in, std::vector<CaseOperand> written, const char* chain) {
        check_as_on_cpu({"elementwise", std::move(in), std::move(written), {{"expression", std::string(chain)}}});
      };
      check_chain({p, l}, {out}, "l0 =0");
      check_chain({x, p, l, x}, {out}, "x0 l1 + x3 + =0");
      check_chain({x, p, m, x, p, l, x, p, l}, {out, out},
                  "x0 m1 + :0 x3 l4 + :1 silu * =0 $0 x6 l7 + * $1 silu_grad =1");
      check_chain({x, p, m, x}, {out}, "x0 m1 + tanh x3 gelu * =0");
    }
  }
}

TEST_CASE("a product of few terms that is large for the card is a chain and not cuBLASLt's") {
  if (!is_built_for_hopper()) return;
  const OneMultiprocessor card;
  const auto check_product = [](int64_t rows, int64_t columns, int64_t terms, bool nk, bool residual, bool is_chain) {
    KernelCase row{"matmul",
                   {halves({rows, terms}), halves(nk ? Shape{columns, terms} : Shape{terms, columns})},
                   {unwritten({rows, columns}, DType::bf16)}};
    if (nk) row.attrs.set("transpose_b", true);
    if (residual) row.attrs.set("residual", true);
    if (residual) row.in.push_back(halves({rows, columns}));
    const int before = emulator::library_products();
    check_as_on_cpu(row);
    CHECK((emulator::library_products() == before) == is_chain);
  };
  for (const bool nk : {false, true}) {
    for (const bool residual : {false, true}) {
      check_product(1001, 32, 8, nk, residual, true);
      check_product(497, 64, 64, nk, residual, true);
      check_product(1001, 32, 72, nk, residual, false);  // terms
      check_product(331, 96, 12, nk, residual, false);   // no multiple of 8
    }
  }
}

}  // namespace trainctl
