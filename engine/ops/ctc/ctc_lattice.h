// Connectionist temporal classification (Graves et al. 2006), for CPUs and GPUs. The states of a label l1 l2 .. of L
// classes are blank l1 blank l2 .. blank, 2 L + 1 of them. A path moves by 0 or 1 states per step, or by 2 to another
// class, and emits the class of its state.
//
//   alpha(t, s)   log-probability of all beginnings of paths that end in state s at step t, with its emission
//   beta(t, s)    that of all continuations of state s after step t
//
// Sums are of logarithms in double; only the correction log(1 + e^(a - b)) is computed in f32.
#pragma once

#include <cmath>
#include <cstdint>

#include "engine/ops/host_device.h"
#include "engine/ops/kernel.h"

namespace trainctl {

/// log(e^a + e^b)
TRAINCTL_HOST_DEVICE inline double ctc_log_add(double a, double b) {
  if (b > a) {
    const double other = a;
    a = b;
    b = other;
  }
  if (b == -INFINITY) return a;
  return a + static_cast<double>(log1pf(expf(static_cast<float>(b - a))));
}

/// The operands of a call: logits [rows, steps, classes], labels i32 [rows, most], and, if they are given, the steps
/// and the labels of each row that count, i32 [rows]. Without the last, labels end at the first one that is negative or
/// the blank.
struct CtcCall {
  int64_t rows = 0, steps = 0, classes = 0, most = 0;
  int32_t blank = 0;
  bool zero_infinity = false, by_length = false;
  const int32_t *labels = nullptr, *step_counts = nullptr, *label_counts = nullptr;

  static CtcCall of(const KernelCall& call) {
    const Shape &logits = call.in[0].shape, &labels = call.in[1].shape;
    CtcCall c{.rows = logits[0], .steps = logits[1], .classes = logits[2], .most = labels[1]};
    c.blank = static_cast<int32_t>(call.attrs.integer("blank"));
    c.zero_infinity = call.attrs.flag("zero_infinity");
    c.by_length = call.attrs.flag("by_length");
    c.labels = call.in[1].as<int32_t>();
    size_t next = 2;
    if (call.attrs.flag("input_lengths")) c.step_counts = call.in[next++].as<int32_t>();
    if (call.attrs.flag("label_lengths")) c.label_counts = call.in[next++].as<int32_t>();
    return c;
  }

  TRAINCTL_HOST_DEVICE int64_t most_states() const { return 2 * most + 1; }
  TRAINCTL_HOST_DEVICE int64_t steps_of(int64_t row) const { return step_counts != nullptr ? step_counts[row] : steps; }
  TRAINCTL_HOST_DEVICE int64_t labels_of(int64_t row) const {
    if (label_counts != nullptr) return label_counts[row];
    int64_t n = 0;
    while (n < most && labels[row * most + n] >= 0 && labels[row * most + n] != blank) ++n;
    return n;
  }
  /// The factor of a row's loss.
  TRAINCTL_HOST_DEVICE double factor(int64_t count) const {
    return by_length && count > 1 ? 1.0 / static_cast<double>(count) : 1.0;
  }
  TRAINCTL_HOST_DEVICE bool is_class(int32_t label) const { return label >= 0 && label < classes && label != blank; }
  /// The class of a state of the row whose labels these are.
  TRAINCTL_HOST_DEVICE int32_t class_of(const int32_t* of_row, int64_t state) const {
    return state % 2 == 0 ? blank : of_row[state / 2];
  }
  /// Returns whether a path may move from state - 2 to this one.
  TRAINCTL_HOST_DEVICE bool may_skip(const int32_t* of_row, int64_t state) const {
    return state % 2 == 1 && state >= 3 && of_row[state / 2] != of_row[state / 2 - 1];
  }

  /// alpha of a state, from that of the step before, without its emission.
  TRAINCTL_HOST_DEVICE double arriving(const int32_t* of_row, const double* before, int64_t state) const {
    double sum = before[state];
    if (state >= 1) sum = ctc_log_add(sum, before[state - 1]);
    if (may_skip(of_row, state)) sum = ctc_log_add(sum, before[state - 2]);
    return sum;
  }
  /// beta of a state, from the sums of beta and emission of the step after.
  TRAINCTL_HOST_DEVICE double leaving(const int32_t* of_row, const double* after, int64_t state, int64_t states) const {
    double sum = after[state];
    if (state + 1 < states) sum = ctc_log_add(sum, after[state + 1]);
    if (state + 2 < states && may_skip(of_row, state + 2)) sum = ctc_log_add(sum, after[state + 2]);
    return sum;
  }
};

}  // namespace trainctl
