// A kind of host as data: its devices, the links between them and between hosts, and how long kernels take. The planner
// and the estimator use only this data, so a plan for a machine can be made anywhere.
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

/// The networks of one level: each joins units of the level below, which are devices or groups of them.
struct LinkLevel {
  std::string name;  ///< "NVLink", "InfiniBand"
  int devices = 0;   ///< devices that one such network joins; 0: any number
  /// Bandwidth per device, in each direction, while all devices of the network send as much.
  BytesPerSecond bandwidth;
  Seconds latency;  ///< latency of a message

  friend bool operator==(const LinkLevel&, const LinkLevel&) = default;
};

/// The highest rates of matrix products that a device reaches, by the type of the operands.
struct ProductRates {
  FlopsPerSecond fp32, tf32, bf16;
  friend bool operator==(const ProductRates&, const ProductRates&) = default;
};

/// A whole step on one rank, as a run of it was measured.
struct StepSample {
  std::string job;
  int kernels = 0;   ///< kernels that the rank's program starts
  Seconds alone;     ///< sum of the times of its kernels, as measured or modelled separately
  Seconds measured;  ///< time of the step
  Seconds products;  ///< the part of `alone` that is products and convolutions
  friend bool operator==(const StepSample&, const StepSample&) = default;
};

/// Time of a step in addition to the times of its separately measured kernels. It covers effects that
/// KernelSample::in_step does not attribute to single kernels, such as short ones, whose caches and launches differ in
/// a step. Products and the rest are affected differently: step = product_stretch * products + other_stretch * (alone -
/// products) + gap * kernels + host.
struct StepCost {
  double product_stretch = 1, other_stretch = 1;
  /// Time added per kernel. Below 0 where small kernels read from a cache what they read from memory when measured.
  Seconds gap;
  Seconds host;      ///< time added per step: work of the host between two steps
  double error = 0;  ///< relative: the standard deviation of the unexplained rest, which all kernels share

  Seconds seconds(const StepSample& step) const;
  /// Time of one kernel in a step: at least half of its stretched time, however small it is. `starts`: the kernel does
  /// not share the launch of the one before it.
  Seconds of_kernel(Seconds alone, bool is_product, bool starts) const;
};
/// Fits by least squares of the relative errors. With few samples the result tends towards no stretch, gap and host
/// time.
StepCost step_cost(const std::vector<StepSample>& samples);

/// Additional time of a collective in a step, compared with the same call back to back with equal calls.
struct CallDelays {
  Seconds exposed;  ///< if no kernel of its rank runs when it begins: the streams synchronize twice
  Seconds beside;   ///< if a long kernel runs: it also waits for multiprocessors that this kernel occupies
  friend bool operator==(const CallDelays&, const CallDelays&) = default;
};

struct Machine {
  std::string name;    ///< "h200x8"
  std::string source;  ///< where the numbers are from: "data sheets", "measured 2026-11-23, driver 580.82"
  DeviceKind kind = DeviceKind::cpu;
  /// Devices per host. Ranks of a CPU beyond its cores share them.
  int devices = 1;
  Bytes memory;    ///< memory of a device
  Bytes reserved;  ///< the part of it that driver and libraries take before a rank has anything
  /// Additional memory that they need once a rank calls collectives, and once it sends or receives messages.
  Bytes for_collectives, for_messages;
  ProductRates products;
  BytesPerSecond memory_rate;  ///< bytes read and bytes written together
  /// Multiprocessors, which share the tiles of a product, one each at a time. 0: products of any size run at the rate.
  int multiprocessors = 0;
  /// Rate at which scores of attention are processed, with everything that is computed from them. 0: they take no time.
  double exponentials_per_second = 0;
  Seconds launch;  ///< shortest time between the starts of successive kernels of a stream
  /// Streams run concurrently; else a rank does one thing at a time, in the order of its program.
  bool overlaps = false;
  /// Factor on the time of kernels, and of the transfer, while a transfer is in progress.
  double overlap_cost = 1;
  /// Factor on the time of kernels while their rank waits for a message, because the wait occupies multiprocessors.
  double wait_cost = 1;
  CallDelays delays;
  std::vector<LinkLevel> links;  ///< innermost first; the last joins any number
  KernelSamples kernels;         ///< by kernel_key
  KernelSamples calls;           ///< collectives and messages, by call_key; `cost.bytes` is what a rank sends
  std::vector<StepSample> steps;

  FlopsPerSecond product_rate(DType dtype, bool tf32) const;
  /// Memory of a device that driver and libraries take, which programs cannot use.
  Bytes reserved_memory(bool calls_collectives, bool sends_messages) const;
  friend bool operator==(const Machine&, const Machine&) = default;
};

/// The placement of a group on the network: for each level, the number of units of the level below that it connects. A
/// group of 16 ranks on 2 hosts of 8 is {8, 2}.
struct GroupSpread {
  std::vector<int> units;
  int size() const;
};

/// Spread of the group of `ranks`; these are global numbers, assigned to devices and hosts in order.
GroupSpread spread_of(const Machine& machine, std::span<const int> ranks);

/// Bytes that one rank sends: all_reduce 2(p-1)/p n, all_gather, reduce_scatter and all_to_all (p-1)/p n, broadcast n.
/// `bytes`: the larger side: what one rank holds before (all_reduce, reduce_scatter, all_to_all, broadcast) or after
/// (all_gather) the call.
int64_t wire_bytes(Collective kind, int64_t bytes, int group_size);

/// The alpha-beta model over all levels: a call has a latency, and one more for each round of a tree within each level;
/// the levels transfer the bytes concurrently, so the slowest level counts. All groups like this one call at the same
/// time. A group with the same placement as a measured one takes the measured time.
Seconds collective_time(const Machine& machine, Collective kind, Bytes bytes, const GroupSpread& spread);
/// "all_reduce 8x2": the kind and the group's units, without trailing ones.
std::string call_key(Collective kind, const GroupSpread& spread);
std::vector<double> call_sizes(Bytes bytes);
/// "message 2", "message 1x2": the key of messages between two ranks with this placement.
std::string message_key(const GroupSpread& spread);

/// Time of a message between two ranks with this placement: as measured between a kernel of one rank and a kernel of
/// the other, else the latency of the link plus the transfer time of its bytes.
Seconds send_time(const Machine& machine, Bytes bytes, const GroupSpread& spread);

/// Model from the measurements of calls like this; null: there are none. `adds`: the kernel adds to its output; if that
/// was not measured, the model of the call that overwrites its output.
const KernelModel* model_of(const Machine& machine, const KernelDef& kernel, Infos inputs, Infos outputs,
                            const Attrs& attrs, bool adds);
/// Seconds of one kernel that runs alone: as measured, else `launch` and unmeasured_time.
Seconds kernel_time(const Machine& machine, const KernelDef& kernel, Infos inputs, Infos outputs, const Attrs& attrs,
                    bool adds = false);

/// Products per second of the device's data sheet, without sparsity, by the type in which they are multiplied. Devices
/// are recognised by their number of multiprocessors; 0: not known.
FlopsPerSecond data_sheet_rate(const Machine& machine, DType dtype, bool tf32);

/// The machines that come with the program.
std::span<const Machine> known_machines();
/// Returns null if there is none of that name.
const Machine* find_machine(std::string_view name);

}  // namespace trainctl
