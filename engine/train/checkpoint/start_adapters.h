// Adapters that a run starts from: a folder in PEFT's format (adapters.lora.from).
//
// A layer may consist of several modules, such as q, k and v. If their A's differ, they take ranks of their own: with
// r the folder's rank, A has those of q in rows [0, r), those of k in [r, 2r), and B is zero outside of the block of
// each. Ranks that are left over begin as without the folder, with a B of zeros, so the product is that of the folder.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/planning/planned_job.h"
#include "engine/runtime/executor.h"
#include "engine/train/checkpoint/adapter_modules.h"
#include "engine/train/checkpoint/weight_files.h"

namespace trainctl {

class StartAdapters {
 public:
  /// Reads the folder. Throws EnvError if it has something that the job does not compute, or if a layer needs more
  /// ranks than adapters.lora.rank.
  StartAdapters(const PlannedJob& job, const NameMap& map);

  /// Writes this rank's part into the arena.
  void load(const Program& program, Executor& executor) const;

 private:
  struct Values {
    std::vector<float> a, b;  ///< [rank, features], [units, rank]
    int64_t filled = 0;       ///< rows of A that the folder has
  };

  double read_factor(const std::string& folder);
  void require_known_modules(const AdapterModules& modules) const;
  Values values_of(const AdaptedLayer& layer, const AdapterModules& modules, double factor,
                   const std::string& path) const;
  std::vector<float> read(const std::string& name, const Shape& shape) const;

  WeightFiles files_;
  int64_t rank_ = 0;                                   ///< the job's rank
  int64_t their_rank_ = 0;                             ///< the folder's rank
  std::map<std::string, Values, std::less<>> values_;  ///< by layer
};

}  // namespace trainctl
