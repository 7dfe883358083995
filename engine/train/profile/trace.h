// Profiles as a trace that chrome://tracing and ui.perfetto.dev open (the Trace Event Format, JSON):
//
//   {"displayTimeUnit": "ns", "otherData": {"clock": "CLOCK_MONOTONIC", "origin_ns": 81234567, …}, "traceEvents": [
//   {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "rank 0, stage 0"}},
//   {"ph": "X", "name": "layer1", "cat": "forward", "pid": 0, "tid": 1, "ts": 0.125, "dur": 42.5, "args": {…}},
//   {"ph": "s" … "f", …}                            arrows: sends to their recvs, and waits between streams
//   ]}
//
// pid is the rank. tid: 0 the steps, 1 + the stream; sends use 100 + the peer, since a device has a channel to each.
// One event per line. Times are microseconds since origin_ns.
#pragma once

#include <iosfwd>
#include <span>
#include <string>
#include <vector>

#include "engine/train/profile/step_profile.h"

namespace trainctl {

/// `profiles`: one rank, or several ranks of one host.
void write_trace(std::ostream& out, std::span<const RankProfile> profiles, const std::string& job);

/// The spans of a rank's trace written by write_trace. Throws EnvError if it is not such a trace.
std::vector<TimeSpan> read_trace(std::istream& in);

}  // namespace trainctl
