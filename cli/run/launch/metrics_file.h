// metrics.jsonl between the attempts of a run. The first rank writes it; the launcher removes the lines of steps that
// are repeated, and adds lines that only other ranks have reported:
//
//   <run>/metrics.jsonl            rank 0, or on one host an asynchronous worker in its place
//         rank.<N>/metrics.jsonl   a rank of another host: its copy, in case rank 0's host is lost, or its reports
//                                  after the asynchronous workers before it have died
#pragma once

#include <cstdint>

#include "launcher/run_directory.h"

namespace trainctl {

/// Keeps the lines of steps up to `last_step`, and adds those of rank.<N>/metrics.jsonl that metrics.jsonl lacks.
/// Returns the size of metrics.jsonl in bytes. If the disk is full, the file is not changed.
int64_t keep_metrics(const RunDirectory& directory, int64_t last_step);

/// Adds the lines of rank.<N>/metrics.jsonl that metrics.jsonl lacks, and deletes those files. Call this at the end of
/// the run, before outcome.json is written: programs that follow metrics.jsonl stop when outcome.json exists.
void gather_metrics(const RunDirectory& directory);

}  // namespace trainctl
