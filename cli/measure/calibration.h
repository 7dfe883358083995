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
  /// `always`: the call belongs to a job that the user named; other calls only show how times depend on sizes.
  void add(const RankClasses& classes, bool always);
  /// Returns all calls that are always measured, and at most `most` others per key, spread evenly over the sizes. Omits
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

/// True if all kinds of collectives among this number of ranks of this host were measured.
bool has_collectives(const Machine& machine, int ranks);
/// Stores the results, all measured on this host, and fits the innermost link to them.
void calibrate_links(const std::vector<CollectiveResult>& results, Machine& machine);

bool has_messages(const Machine& machine);
void calibrate_messages(const std::vector<MessageResult>& results, Machine& machine);

}  // namespace trainctl
