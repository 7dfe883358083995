// Times the kernels of public models' training steps (`trainctl bench model`).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/measure/op_bench.h"
#include "cli/measure/public_models.h"

namespace trainctl {

struct ModelOpResult {
  ModelOp op;
  std::optional<OpResult> result;
  std::string why_not;  ///< if there is no result: what the device or the engine lacks

  /// Seconds per step; 0 if there is no result.
  double seconds() const { return result ? op.calls * result->seconds.median : 0; }
};

struct ModelResult {
  const PublicModel* model = nullptr;
  int64_t samples = 1, length = 0;
  std::vector<ModelOpResult> ops;

  double seconds() const;
};

/// A kernel below this share of its limit is worth a look.
inline constexpr double kGoodShare = 0.85;

/// An op that the engine or the device does not support becomes a row that says so. Throws EnvError if there is too
/// little memory.
ModelResult bench_model(const PublicModel& model, int64_t samples, int64_t length, const BenchType& type,
                        OpBench& bench);

}  // namespace trainctl
