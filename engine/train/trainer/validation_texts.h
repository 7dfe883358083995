// validation.generate: the texts of a request, with the weights that a training has at its validations. The programs of
// the generation have an arena of their own, separate from the training's.
#pragma once

#include <vector>

#include "engine/train/files/metrics.h"
#include "engine/train/trainer/generation_request.h"
#include "engine/train/trainer/shared_weights.h"
#include "engine/train/trainer/token_steps.h"

namespace trainctl {

class ValidationTexts {
 public:
  /// All must outlive it. `generation`: plan_generation() of the job, with the request's size; `decode` and `prefill`
  /// are its programs. `weights_fd`: as SharedWeights.
  ValidationTexts(const PlannedJob& training, const Program& trained, const PlannedJob& generation,
                  GenerationRequest request, const Program& decode, const Program& prefill, Communicator& comm,
                  const ExecutorOptions& options, const TokenSteps::MakeExecutor& make, int weights_fd);

  /// All ranks call it after `steps` finished steps. Rank 0 returns the texts, the others return none.
  std::vector<ValidationText> write(int64_t steps, Executor& training);

 private:
  const Program &trained_, &decode_;
  const GenerationRequest request_;
  Communicator& comm_;
  SharedWeights weights_;
  TokenSteps steps_;
};

}  // namespace trainctl
