// A kind of host as data: its devices, the links between them and between hosts, and how long kernels take. The planner
// and the estimator know of a machine what stands here, and nothing else; so a plan for a machine can be made anywhere.
//
//   devices   joined by levels of links, innermost first: 8 GPUs of a host by NVLink, any number of hosts by a network
//   kernels   a bound for all (rates of products and of memory), better where a kernel was measured
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/units.h"
#include "engine/graph/collective.h"
#include "engine/graph/dtype.h"
#include "engine/machine/kernel_samples.h"
#include "engine/ops/kernel_def.h"

namespace trainctl {

enum class DeviceKind : uint8_t { cpu, cuda };

/// What joins units of the level below: devices, or groups of them.
struct LinkLevel {
  std::string name;  ///< "NVLink", "InfiniBand"
  int devices = 0;   ///< that one such network joins; 0: any number
  /// A device's share, in each direction: what it sends while all devices of the network send as much.
  BytesPerSecond bandwidth;
  Seconds latency;  ///< of a message

  friend bool operator==(const LinkLevel&, const LinkLevel&) = default;
};

/// The fastest products of matrices that a device reaches, by the type in which they are multiplied.
struct ProductRates {
  FlopsPerSecond fp32, tf32, bf16;
  friend bool operator==(const ProductRates&, const ProductRates&) = default;
};

/// A whole step on one rank, as a run of it was measured.
struct StepSample {
  std::string job;
  int kernels = 0;   ///< that the rank's program starts
  Seconds alone;     ///< the sum of what its kernels take by their samples
  Seconds measured;  ///< the step
  Seconds products;  ///< the part of `alone` that is products and convolutions
  friend bool operator==(const StepSample&, const StepSample&) = default;
};

/// What a step takes beyond its kernels by their samples: what of KernelSample::in_step is not known of single ones,
/// such as short kernels, whose caches and launches differ in a step. Products and the rest feel that differently: step
/// = product_stretch * products + other_stretch * (alone - products) + gap * kernels + host.
struct StepCost {
  double product_stretch = 1, other_stretch = 1;
  /// Of each kernel. Below 0 where small kernels find in a cache what they read from memory when they are measured.
  Seconds gap;
  Seconds host;      ///< of each step: what the host does between two of them
  double error = 0;  ///< relative: the standard deviation of what this leaves unexplained, which all kernels share

  Seconds seconds(const StepSample& step) const;
  /// Of one kernel in a step: at least half of what it takes alone, however small it is. `starts`: not within the
  /// launch of the kernel before it.
  Seconds of_kernel(Seconds alone, bool is_product, bool starts) const;
};
/// The least squares of relative errors, drawn towards no stretch, gap and host time where samples are few.
StepCost step_cost(const std::vector<StepSample>& samples);

/// How much longer a collective takes in a step than the same call back to back with its like.
struct CallDelays {
  Seconds exposed;  ///< no kernel of its rank runs when it begins: streams hand over to each other, twice
  Seconds beside;   ///< a long kernel runs: it also waits for multiprocessors that this holds
  friend bool operator==(const CallDelays&, const CallDelays&) = default;
};

struct Machine {
  std::string name;    ///< "h200x8"
  std::string source;  ///< where the numbers are from: "data sheets", "measured 2026-11-23, driver 580.82"
  DeviceKind kind = DeviceKind::cpu;
  /// Devices of a host. Ranks of a CPU beyond its cores share them.
  int devices = 1;
  Bytes memory;    ///< of a device
  Bytes reserved;  ///< the part of it that driver and libraries take before a rank has anything
  /// What they take beside that once a rank calls collectives, and once it sends or receives messages too.
  Bytes for_collectives, for_messages;
  ProductRates products;
  BytesPerSecond memory_rate;  ///< bytes read and bytes written together
  /// That share the tiles of a product, one each at a time. 0: a product of any size takes its operations at the rate.
  int multiprocessors = 0;
  /// Of the scores of attention, with what else is computed of each. 0: they take no time.
  double exponentials_per_second = 0;
  Seconds launch;  ///< at least, from the begin of one kernel of a stream to that of the next
  /// Streams run side by side; else a rank does one thing at a time, in the order of its program.
  bool overlaps = false;
  /// While bytes move, kernels take this many times as long, and the transfer too.
  double overlap_cost = 1;
  /// While a rank waits for a message, its kernels take this many times as long: what waits holds multiprocessors.
  double wait_cost = 1;
  CallDelays delays;
  std::vector<LinkLevel> links;  ///< innermost first; the last joins any number
  KernelSamples kernels;         ///< by kernel_key
  KernelSamples calls;           ///< collectives and messages, by call_key; `cost.bytes` is what a rank sends
  std::vector<StepSample> steps;

  FlopsPerSecond product_rate(DType dtype, bool tf32) const;
  /// Of the memory, what is no rank's own.
  Bytes taken(bool calls_collectives, bool sends_messages) const;
  friend bool operator==(const Machine&, const Machine&) = default;
};

/// How many members of a group share a network: of each level, the units of the level below that it joins. A group of
/// 16 ranks on 2 hosts of 8 is {8, 2}.
struct GroupSpread {
  std::vector<int> units;
  int size() const;
};

/// Of a group of `ranks`, global numbers, that lie on hosts in their order.
GroupSpread spread_of(const Machine& machine, std::span<const int> ranks);

/// Bytes that one rank sends: all_reduce 2(p-1)/p n, all_gather, reduce_scatter and all_to_all (p-1)/p n, broadcast n.
/// `bytes`: the larger side: what one rank holds before (all_reduce, reduce_scatter, all_to_all, broadcast) or after
/// (all_gather) the call.
int64_t wire_bytes(Collective kind, int64_t bytes, int group_size);

/// The alpha-beta model over all levels: a call has a latency, and one more for each round of a tree within each level;
/// the levels pass on the bytes side by side, so the slowest counts. All groups like this one call at once. A group
/// that lies like one that was measured takes what that took.
Seconds collective_time(const Machine& machine, Collective kind, Bytes bytes, const GroupSpread& spread);
/// "all_reduce 8x2": the kind and the group's units, without trailing ones.
std::string call_key(Collective kind, const GroupSpread& spread);
std::vector<double> call_sizes(Bytes bytes);
/// "message 2", "message 1x2": of two ranks that lie like this.
std::string message_key(const GroupSpread& spread);

/// A message between two ranks that lie like this: as measured between a kernel of the one and a kernel of the other,
/// else the link's latency and what its bytes take.
Seconds send_time(const Machine& machine, Bytes bytes, const GroupSpread& spread);

/// What was measured of calls like this. `adds`: to what an output holds already; if that was not measured, as without.
/// Null: nothing.
const KernelModel* model_of(const Machine& machine, const KernelDef& kernel, Infos inputs, Infos outputs,
                            const Attrs& attrs, bool adds);
/// Seconds of one kernel that runs alone: as measured, else `launch` and unmeasured_time.
Seconds kernel_time(const Machine& machine, const KernelDef& kernel, Infos inputs, Infos outputs, const Attrs& attrs,
                    bool adds = false);

/// The machines that come with the program.
std::span<const Machine> known_machines();
/// Null: there is none of that name.
const Machine* find_machine(std::string_view name);

}  // namespace trainctl
