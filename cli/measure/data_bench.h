// Measures how fast a job's samples can be read, decoded and transformed, and which stage takes the time.
#pragma once

#include <string>
#include <vector>

#include "engine/spec/job_spec.h"
#include "engine/train/data/read_state.h"

namespace trainctl {

struct DataBenchRow {
  int workers = 1;
  int64_t samples = 0;
  double seconds = 0;
  StageSeconds stages;  ///< summed over all workers
  double rate() const { return static_cast<double>(samples) / seconds; }
};

struct DataBench {
  std::vector<DataBenchRow> rows;  ///< 1 worker, 2, 4, … up to the most
  int64_t samples = 0;             ///< number of samples in the data set
  std::string fields;              ///< "image [3, 224, 224] of f32, label [] of i32"
};

/// Reads samples in the order of the job's first epoch, for `seconds` with each number of workers, without a cache.
/// Each field ends in the type in which the device loads it: bytes for launch.device: cuda if a GPU converts them.
/// Throws the exceptions of open_dataset and of the samples' files.
DataBench bench_data(const JobSpec& job, int most_workers, double seconds);

}  // namespace trainctl
