// Measures a machine for the estimator: the kernels that jobs run, each distinct call once, and the collectives between
// the devices of this host.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "cli/measure/collective_bench.h"
#include "cli/measure/op_bench.h"
#include "cli/measure/transfer_bench.h"
#include "engine/compile/rank_classes.h"
#include "engine/machine/machine.h"

namespace trainctl {

/// The identity of a measured kernel call: its kernel_key, and its sample without seconds.
struct MeasuredCall {
  std::string key;
  KernelSample sample;
};
MeasuredCall call_of(const Instruction& kernel);

/// Distinct kernel calls, in the order of their keys and sizes.
class KernelCalls {
 public:
  /// `always`: of a job that was asked for; else calls that only show how times depend on sizes.
  void add(const RankClasses& classes, bool always);
  /// All calls that are always measured, and at most `most` others per key, spread evenly over the sizes; leaves out
  /// calls that `machine` already has.
  std::vector<OpRequest> to_measure(const Machine& machine, size_t most) const;

 private:
  /// Distinguishes calls with the same kernel_key: kernel_sizes, operations, and attributes as text.
  using CallKey = std::tuple<std::vector<double>, double, std::string>;
  struct Call {
    OpRequest request;
    bool always = false;  ///< measured however many there are
  };
  std::map<std::string, std::map<CallKey, Call>> calls_;
};

/// Measures the request and adds it to the machine. Throws EnvError if there is too little memory, SpecError if the
/// kernel does not run alone.
void calibrate_kernel(OpBench& bench, const OpRequest& request, Machine& machine);

/// Whether all kinds of collectives among so many ranks of this host were measured.
bool has_collectives(const Machine& machine, int ranks);
/// Takes over the results, all of this host, and makes the innermost link that which fits them best.
void calibrate_links(const std::vector<CollectiveResult>& results, Machine& machine);

bool has_messages(const Machine& machine);
void calibrate_messages(const std::vector<MessageResult>& results, Machine& machine);

}  // namespace trainctl
