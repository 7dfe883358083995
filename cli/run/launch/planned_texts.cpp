// validation.generate, planned: the texts that the validations of a run generate, and the programs that generate them.
#include "cli/run/launch/planned_texts.h"

#include <algorithm>
#include <utility>

#include "cli/run/launch/generation_prompts.h"
#include "engine/base/error.h"
#include "engine/model_folder/generation_config.h"
#include "engine/planning/compile_job.h"
#include "engine/planning/plan_generation.h"
#include "engine/train/data/read_and_plan.h"
#include "engine/train/trainer/generator.h"

namespace trainctl {
namespace {

/// Turns errors of prompts into errors that name the field of the job.
template <class F>
auto of_prompts(const JobSpec& spec, F&& call) {
  constexpr const char* kField = "validation.generate.prompts";
  try {
    return call();
  } catch (const SpecError& error) {
    std::vector<Diagnostic> all = error.diagnostics();
    for (Diagnostic& one : all) one.path = kField, one.pos = spec.position("validation.generate");
    throw SpecError(std::move(all));
  }
}

/// Plans the generation of the texts. The message of an error says that validation.generate needs this plan.
PlannedJob plan_of_texts(const JobSpec& spec, const GenerationSize& size) {
  try {
    return plan_generation(spec, size);
  } catch (const SpecError& error) {
    std::vector<Diagnostic> all = error.diagnostics();
    for (Diagnostic& one : all) one.message += " (for validation.generate)";
    throw SpecError(std::move(all));
  }
}

GenerationRequest request_of_texts(const JobSpec& spec) {
  const GenerateSpec& generate = *spec.validation->generate;
  const std::string folder = model_folder_of(spec);
  const GenerationConfig config = folder.empty() ? GenerationConfig{} : read_generation_config(folder);
  GenerationRequest request;
  request.tokenizer = tokenizer_of(spec, "", folder);
  request.max_tokens = generate.max_tokens;
  request.sampling = {.temperature = generate.temperature, .seed = static_cast<uint64_t>(generate.seed)};
  request.end_tokens.assign(config.end_tokens.begin(), config.end_tokens.end());
  PromptOptions prompts;
  prompts.file = generate.prompts;
  prompts.chat = spec.dataset.type == "chat";
  prompts.may_chat = true;
  add_prompts(prompts, request);
  request.size = size_of(spec, request, config);
  return request;
}

}  // namespace

int64_t PlannedTexts::arena_bytes(int rank) const {
  return std::max(decode.program_of(rank).arena_bytes, prefill.program_of(rank).arena_bytes);
}

std::optional<PlannedTexts> plan_texts(const PlannedJob& job) {
  if (!job.spec.validation || !job.spec.validation->generate) return std::nullopt;
  PlannedTexts texts;
  texts.request = of_prompts(job.spec, [&] { return request_of_texts(job.spec); });
  texts.job = plan_of_texts(job.spec, texts.request.size);
  require_known_tokens(texts.job, texts.request);
  texts.decode = compile_classes(texts.job);
  texts.prefill = compile_prefill_classes(texts.job);
  return texts;
}

void make_room_for(const PlannedTexts& texts, RankClasses& training) {
  for (size_t c = 0; c < training.programs.size(); ++c) {
    int64_t most = 0;
    for (const int rank : training.ranks[c]) {
      const Memory &decode = texts.decode.program_of(rank).memory, &prefill = texts.prefill.program_of(rank).memory;
      most = std::max(most, std::max(decode.arena(), prefill.arena()) + decode.workspace + prefill.workspace);
    }
    training.programs[c].memory.validation += most;
  }
}

}  // namespace trainctl
