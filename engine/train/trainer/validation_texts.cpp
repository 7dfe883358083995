// validation.generate: the texts of a request, with the weights that a training has at its validations.
#include "engine/train/trainer/validation_texts.h"

#include <algorithm>
#include <utility>

#include "engine/train/trainer/generator.h"

namespace trainctl {

ValidationTexts::ValidationTexts(const PlannedJob& training, const Program& trained, const PlannedJob& generation,
                                 GenerationRequest request, const Program& decode, const Program& prefill,
                                 Communicator& comm, const ExecutorOptions& options,
                                 const TokenSteps::MakeExecutor& make, int weights_fd)
    : trained_(trained),
      decode_(decode),
      request_(std::move(request)),
      comm_(comm),
      weights_(training, weights_fd),
      steps_(generation, decode, prefill, comm, options, make) {}

std::vector<ValidationText> ValidationTexts::write(int64_t steps, Executor& training) {
  weights_.pass(trained_, training, decode_, steps_.executor(), comm_);
  steps_.set_step(static_cast<uint32_t>(std::max<int64_t>(steps, 1) - 1));
  if (comm_.rank() == 0) return generate_texts(request_, steps_);
  steps_.follow();
  return {};
}

}  // namespace trainctl
