// validation.generate, planned: the texts that the validations of a run generate, and the programs that generate them.
#pragma once

#include <optional>

#include "engine/compile/rank_classes.h"
#include "engine/planning/planned_job.h"
#include "engine/train/trainer/generation_request.h"

namespace trainctl {

struct PlannedTexts {
  GenerationRequest request;
  PlannedJob job;               ///< plan_generation() of the job
  RankClasses decode, prefill;  ///< verified

  /// Memory of the programs of a rank, which have an arena of their own.
  int64_t arena_bytes(int rank) const;
};

/// Nothing for a job without validation.generate. Throws SpecError if a prompt does not fit the job, or if text
/// generation does not support its plan. Throws EnvError if the prompts or the tokenizer cannot be read.
std::optional<PlannedTexts> plan_texts(const PlannedJob& job);

/// Adds their memory to Memory::validation of the training's programs.
void make_room_for(const PlannedTexts& texts, RankClasses& training);

}  // namespace trainctl
