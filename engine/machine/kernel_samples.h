// Measured times of kernels, and a model of them for sizes that were not measured.
//
// A kernel's time is modelled as start + operations / rate + bytes / rate, with coefficients >= 0 that minimize the
// squares of the relative errors. The remaining errors at the measured sizes are interpolated: a size gets the
// errors of the nearest measured sizes, where other attributes or another number of operations add to the distance. The
// model estimates its own error by leaving out one measured size at a time; near a measured size the error is smaller.
#pragma once

#include <array>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/units.h"
#include "engine/ops/kernel_def.h"

namespace trainctl {

struct KernelSample {
  std::vector<double> sizes;  ///< log2 of the bytes of each input, then of each output
  Cost cost;
  Seconds seconds;      ///< time when it runs alone
  std::string attrs{};  ///< attributes of the call, as text: kernels of one name compute different things
  /// Time in a step relative to `seconds`; for a call that occurs in no measured step, that of the nearest call that
  /// does.
  double in_step = 1;
  Seconds priced() const { return in_step * seconds; }
  bool operator==(const KernelSample&) const;
};

class KernelModel {
 public:
  KernelModel() = default;
  /// `samples` has at least one sample; all have the same number of sizes.
  explicit KernelModel(std::vector<KernelSample> samples);

  /// The predicted time in a step.
  Seconds seconds(const std::vector<double>& sizes, const Cost& cost, std::string_view attrs = {}) const;
  /// The relative error: the standard deviation of log(measured time / seconds()).
  double error(const std::vector<double>& sizes, const Cost& cost, std::string_view attrs = {}) const;
  /// The same for a size far from all samples, at most 1.
  double error() const { return error_; }
  /// False if all samples take about as long, or hardly longer than a launch: they show the time of a launch, and no
  /// rate.
  bool shows_rates(Seconds launch) const;
  const std::vector<KernelSample>& samples() const { return samples_; }
  friend bool operator==(const KernelModel& a, const KernelModel& b) { return a.samples_ == b.samples_; }

 private:
  std::vector<KernelSample> samples_;
  std::vector<double> residuals_;  ///< by sample: log(measured / modelled)
  std::array<double, 3> coefficients_ = {};
  double error_ = 1;
};

/// By key: kernel_key.
using KernelSamples = std::map<std::string, KernelModel>;

/// The distance between two calls of one key: the logarithms (base 2) of the ratios of their sizes and operations, plus
/// 1 if other attributes differ.
double distance(const KernelSample& a, const KernelSample& b);

/// Calls of the same key are comparable: the kernel, the types of its operands, and attributes that choose another
/// algorithm: "matmul bf16 bf16 -> bf16", "matmul f32 f32 -> f32 tf32". `adds`: to what an output holds already, which
/// many kernels do in another way: "embedding_grad bf16 i32 -> f32 +=".
std::string kernel_key(const KernelDef& kernel, Infos inputs, Infos outputs, const Attrs& attrs, bool adds = false);
std::vector<double> kernel_sizes(Infos inputs, Infos outputs);

}  // namespace trainctl
