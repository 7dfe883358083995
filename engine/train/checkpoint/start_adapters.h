// Loads the adapters that a run starts from: a folder in PEFT's format (adapters.lora.from).
//
// A layer may consist of several modules, such as q, k and v. If their A's differ, each module takes ranks of its own.
// With r the folder's rank, A then has the A of q in rows [0, r) and that of k in rows [r, 2r), and B is zero outside
// of each module's block. Ranks that are left over are initialized as without the folder, with zeros in B, so the
// product equals that of the folder. With several adapters (adapters.names), adapters.lora.from contains one folder for
// each.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/planning/planned_job.h"
#include "engine/runtime/executor.h"
#include "engine/runtime/stored_ranges.h"
#include "engine/train/checkpoint/adapter_modules.h"
#include "engine/train/checkpoint/weight_files.h"

namespace trainctl {

class StartAdapters {
 public:
  /// Reads the folder of the adapter `name` ("": the only adapter). Throws EnvError if the folder has something that
  /// the job does not compute, or if a layer needs more ranks than adapters.lora.rank.
  StartAdapters(const PlannedJob& job, const NameMap& map, const std::string& name);

  /// Writes this rank's part of the adapters into the arena.
  void load(const Program& program, Executor& executor) const;

 private:
  struct Values {
    std::vector<float> a, b;  ///< [rank, features], [units, rank]
    /// DoRA: [units]; absent for rows that the folder does not adapt, which keep the norms of the base.
    std::vector<std::optional<float>> magnitudes;
    int64_t filled = 0;  ///< rows of A that the folder has
  };

  void load_magnitudes(const StoredRange& range, Executor& executor) const;
  double read_factor(const std::string& folder, bool is_dora);
  void require_known_modules(const AdapterModules& modules) const;
  Values values_of(const AdaptedLayer& layer, const AdapterModules& modules, double factor,
                   const std::string& path) const;
  std::vector<float> read(const std::string& name, const Shape& shape) const;

  std::string own_;  ///< "." and the adapter's name, or ""
  WeightFiles files_;
  int64_t rank_ = 0;                                   ///< the job's rank
  int64_t their_rank_ = 0;                             ///< the folder's rank
  std::map<std::string, Values, std::less<>> values_;  ///< by layer
};

}  // namespace trainctl
