// Runs the cases of all ops on a GPU, in f32 and bf16, and cases that are too large for finite differences.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>

#include "engine/ops/cuda/cuda_kernel.h"
#include "tests/op_cases/cuda/cuda_device.h"
#include "tests/op_cases/cuda/large_cases.h"
#include "tests/op_cases/op_case_checks.h"
#include "tests/op_cases/op_cases.h"
#include "tests/skip.h"

namespace trainctl {
namespace {

/// The runs of each case: one in f32 and one in bf16.
std::vector<CaseRun> runs() { return {{cuda_device(), DType::f32}, {cuda_device(), DType::bf16}}; }

bool is_product(const OpCase& row) { return get_op(row.op).kernel.is_product; }

/// Prints to stderr which ops take longer than a few seconds while they run, so that the output of a run that is cut
/// off shows where it was.
class Progress {
 public:
  Progress() = default;
  ~Progress() { end(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Called before each row.
  void at(const OpCase& row) {
    if (row.op != op_) end();
    op_ = row.op;
    ++rows_;
  }

 private:
  using Clock = std::chrono::steady_clock;

  void end() {
    const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
    if (seconds > 3) std::fprintf(stderr, "op cases: %d rows of %s took %.1f s\n", rows_, op_.c_str(), seconds);
    start_ = Clock::now();
    rows_ = 0;
  }

  std::string op_;
  int rows_ = 0;
  Clock::time_point start_ = Clock::now();
};

/// Returns whether all kernels of the row take f16, forward and backward. Those of attention and convolutions do so
/// only if cuDNN computes the call (tests/cuda_emulator/library_rules_test.cpp).
bool takes_f16(const OpCase& row) {
  const Graph graph = build_case(row, true, DType::f16).graph;
  const bool by_library = row.op.starts_with("attention") || row.op.starts_with("conv");
  return !by_library && std::all_of(graph.nodes.begin(), graph.nodes.end(), [](const Node& node) {
    const CudaKernelDef* kernel = find_cuda_kernel(get_op(node.op).kernel.name);
    return kernel != nullptr && kernel->takes_f16;
  });
}

/// Returns false, and skips the case, if TRAINCTL_OP_CASES names no family with rows that fit.
bool has_rows(const std::vector<OpCase>& rows, const std::function<bool(const OpCase&)>& fit) {
  const bool has = std::any_of(rows.begin(), rows.end(), fit);
  if (!has) skip_test("TRAINCTL_OP_CASES names no family with rows for this case");
  return has;
}
bool every_row(const OpCase&) { return true; }

/// Calls `check` for each row. Matrix products come last, in a separate case, because cases after a kernel that faults
/// lose the GPU. `concerns` says whether the check tests anything on a row.
template <class Check>
void check_all(Check check_row, bool products = false, const std::function<bool(const OpCase&)>& concerns = every_row) {
  if (!gpu_is_here()) return;
  if (!has_rows(op_cases(), [&](const OpCase& row) { return is_product(row) == products && concerns(row); })) return;
  for (CaseRun run : runs()) {
    CAPTURE(to_string(run.floats));
    if (products) run.least_tolerance = 1e-5;  // the tanh of their epilogues is approximate
    Progress progress;
    for (const OpCase& row : op_cases()) {
      if (is_product(row) != products) continue;
      progress.at(row);
      check_row(row, run);
    }
  }
}

}  // namespace

TEST_CASE("a forward CUDA kernel has the results of the naive loop in double") { check_all(check_forward); }
TEST_CASE("backward CUDA kernels give the slopes of finite differences") {
  check_all(check_backward, false, has_backward);
}
TEST_CASE("every cut that the rule permits gives the unsharded result on a GPU too") {
  check_all(check_cuts, false, has_cuts);
}
TEST_CASE("a CUDA kernel that can accumulate adds to its output") {
  check_all(check_accumulate, false, has_accumulation);
}
TEST_CASE("an op that may work in place gives the same result in place on a GPU") {
  check_all(check_in_place, false, has_in_place);
}
TEST_CASE("a CUDA kernel run twice gives the same bits") { check_all(check_same_bits_twice); }

TEST_CASE("a CUDA kernel takes operands that begin at any element") {
  if (!gpu_is_here()) return;
  if (large_cases().empty() && !has_rows(op_cases(), [](const OpCase& row) { return !is_product(row); })) return;
  for (const DType floats : {DType::f32, DType::bf16}) {
    CAPTURE(to_string(floats));
    std::vector<CaseRun> displaced;
    for (const int by : {2, 4, 12})
      if (by % byte_size(floats) == 0) displaced.push_back({cuda_device(by), floats});
    Progress progress;
    for (const OpCase& row : op_cases()) {
      if (is_product(row)) continue;
      progress.at(row);
      for (const CaseRun& run : displaced) check_forward(row, run);
    }
    for (const OpCase& row : large_cases()) {
      progress.at(row);
      check_as_on(cpu_device(), row, displaced);
    }
  }
}

TEST_CASE("large and odd sizes have the CPU's results on a GPU, and the same bits twice") {
  if (!gpu_is_here() || !has_rows(large_cases(), every_row)) return;
  for (const CaseRun& run : runs()) {
    CAPTURE(to_string(run.floats));
    Progress progress;
    for (const OpCase& row : large_cases()) {
      progress.at(row);
      check_as_on(cpu_device(), row, run);
      check_in_place(row, run);
      check_same_bits_twice(row, run);
      if (row.op == "embedding") check_accumulate(row, run);
    }
  }
}

TEST_CASE("kernels that make gradients of parameters write them in bf16 too, and add to them there") {
  if (!gpu_is_here() || !has_rows(op_cases(), [](const OpCase& row) { return !row.fused; })) return;
  const CaseRun run{cuda_device(), DType::bf16, 0, true};
  Progress progress;
  const auto check_row = [&](const OpCase& row) {
    if (row.fused) return;
    progress.at(row);
    check_as_on(cpu_device(), row, run);
    check_accumulate(row, run);
    check_same_bits_twice(row, run);
  };
  for (const bool products : {false, true}) {
    for (const OpCase& row : op_cases()) {
      if (is_product(row) == products) check_row(row);
    }
  }
}

TEST_CASE("kernels that take f16 have the CPU's results in f16, and add to them there") {
  if (!gpu_is_here() || !has_rows(op_cases(), takes_f16)) return;
  const CaseRun run{cuda_device(), DType::f16};
  Progress progress;
  std::map<std::string, size_t> rows;
  for (const OpCase& row : op_cases()) {
    if (!takes_f16(row) || rows[row.op]++ % every_nth() != 0) continue;
    progress.at(row);
    if (row.has_kinks) check_forward(row, run);
    check_as_on(cpu_device(), row, run);
    check_accumulate(row, run);
  }
}

TEST_CASE("ids whose rows are on other ranks are skipped on a GPU too") {
  if (!gpu_is_here()) return;
  const OpCase row{"embedding", {{{1100}, false, DType::i32, 60}, {{60, 8}}}, {}, {{1100, 8}}};
  for (const CaseRun& run : runs()) check_cuts(row, run);
}

TEST_CASE("matrix products on a GPU pass all checks of the op cases") {
  check_all(check_forward, true);
  check_all(check_backward, true);
  check_all(check_cuts, true);
  check_all(check_accumulate, true);
  check_all(check_in_place, true);
  check_all(check_same_bits_twice, true);
}

}  // namespace trainctl
