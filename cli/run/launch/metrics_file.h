// metrics.jsonl between the attempts of a run. The first rank writes it; the launcher cuts off the lines of steps that
// are done again, and adds what only other ranks have reported:
//
//   <run>/metrics.jsonl            rank 0, or on one host an asynchronous worker in its place
//         rank.<N>/metrics.jsonl   a rank of another host: its copy, in case rank 0's host is lost, or what it reports
//                                  since the asynchronous workers before it have died
#pragma once

#include <cstdint>

#include "launcher/run_directory.h"

namespace trainctl {

/// Keeps the lines of steps up to `last_step`, with those of rank.<N>/metrics.jsonl that metrics.jsonl lacks. Returns
/// the bytes of metrics.jsonl. If the disk has no room for more lines, the file stays as it is.
int64_t keep_metrics(const RunDirectory& directory, int64_t last_step);

/// The run is over: adds the lines of rank.<N>/metrics.jsonl that metrics.jsonl lacks, and deletes those files.
void gather_metrics(const RunDirectory& directory);

}  // namespace trainctl
