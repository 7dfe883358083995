// Checks that every row of the table must pass, on every device and in every number type.
#pragma once

#include <algorithm>

#include "tests/op_cases/simulate.h"

namespace trainctl {

/// The device that a row runs on, and its number types.
struct CaseRun {
  const CaseDevice& device = cpu_device();
  DType floats = DType::f32;
  double least_tolerance = 0;  ///< in f32, for kernels with approximate functions
  /// Input gradients that no node reads are bf16, like those of parameters with gradient_precision.
  bool bf16_gradients = false;

  /// The tolerance, relative to the largest element: that of f32, or the rounding of the 16-bit type, or up to three
  /// times that if f32 loses digits too. f16 has three bits more than bf16.
  double tolerance(double of_f32) const {
    if (floats == DType::f32) return std::max(of_f32, least_tolerance);
    return std::clamp(400 * of_f32, 1e-2, 3e-2) / (floats == DType::f16 ? 4 : 1);
  }
};

/// The number n in TRAINCTL_EVERY_NTH=n in the environment, otherwise 1. The emulator of kernels is slow, so it tries
/// every nth cut, in f32 or in bf16, and repeats every nth row. The CPU tries all of them.
size_t every_nth();

/// Checks the forward pass against the naive loop in double.
void check_forward(const OpCase& row, const CaseRun& run);
/// Returns whether check_backward checks anything: some input has a gradient, and the row is not fused.
bool has_backward(const OpCase& row);
/// Returns whether the rule permits any cut of the row.
bool has_cuts(const OpCase& row);
/// Checks the backward pass against finite differences of the naive loops in double.
void check_backward(const OpCase& row, const CaseRun& run);
/// Checks that every cut that the rule permits gives the unsharded result, forward and backward. Returns the number of
/// cuts. With TRAINCTL_EVERY_NTH=n in the environment it tries every nth of them.
int check_cuts(const OpCase& row, const CaseRun& run);
/// Returns whether any kernel of the row, forward or backward, can accumulate.
bool has_accumulation(const OpCase& row);
/// Checks that a kernel that can accumulate adds to the contents of its output.
void check_accumulate(const OpCase& row, const CaseRun& run);
/// Returns whether any op of the row, forward or backward, may work in place.
bool has_in_place(const OpCase& row);
/// Checks that an op that may work in place gives the same result there, bit for bit.
void check_in_place(const OpCase& row, const CaseRun& run);
/// Checks that two threads give the same bits as one.
void check_threads(const OpCase& row, const CaseRun& run);
/// Checks that two runs give the same bits. With TRAINCTL_EVERY_NTH=n it checks every nth row.
void check_same_bits_twice(const OpCase& row, const CaseRun& run);
/// Checks the forward and the backward pass against f32 on another device, for rows that are too large for finite
/// differences.
void check_as_on(const CaseDevice& other, const OpCase& row, const CaseRun& run);
/// The same for several runs with the same number types, for which the other device computes only once.
void check_as_on(const CaseDevice& other, const OpCase& row, const std::vector<CaseRun>& runs);

}  // namespace trainctl
