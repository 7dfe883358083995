// Measures transfer times within a step, between kernels and concurrent with them, which back-to-back transfers do not
// show: as differences between step times of programs made for this purpose (program_bench.h).
#pragma once

#include <cstdint>
#include <vector>

#include "engine/base/units.h"
#include "engine/machine/machine.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

struct MessageResult {
  int64_t bytes = 0;
  Seconds seconds;  ///< from the end of the sender's kernel to the start of the receiver's
};

/// Measures messages between ranks 0 and 1. Each message is sent back, after a kernel on either side:
///
///   rank 0   kernel ─ send ───────────────── recv ─ kernel ─ send …
///   rank 1                 recv ─ kernel ─ send …
///
/// The time of a message is half a round trip without the kernels. `bytes`: multiples of 4. Forks, see
/// bench_programs().
std::vector<MessageResult> bench_messages(const std::vector<int64_t>& bytes, Device device, int samples);

/// Measures Machine::wait_cost: how many times as long rank 1's products take if a message is awaited before instead of
/// after them. Rank 0 sends it on receiving a message that rank 1 sends after its products. Forks, see
/// bench_programs().
double bench_waiting(Device device, int samples);

struct OverlapResult {
  CallDelays delays;
  double cost = 1;  ///< Machine::overlap_cost
};

/// Measures overlap over `ranks` ranks, with collectives and products as in a small GPT. Forks, see bench_programs().
///
///   exposed   compute   p ─┐       ┌─ p ─┐        each collective waits for the product before it, and each product
///             comm         └─ call ┘     └─ call  for the call before it
///   beside    compute   p ─┬─ p' ─ · ─ p ─┬─ p'   each call begins with a long product p' and waits for what p' holds
///             comm         └──── call ┘   └──── call
///   cost      compute   p ─ p' ─ p ─ p' …         what the products take longer, by second of the calls
///             comm      call ─ call ─ …
OverlapResult bench_overlap(int ranks, Device device, int samples);

}  // namespace trainctl
