// Rules about adapters, and about the frozen weights that they adapt.
#include "engine/spec/adapters.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/spec/rules/rules.h"

namespace trainctl::rules {

void saved_adapters_need_weights(RuleContext& r) {
  const std::optional<LoraSpec>& lora = r.job.adapters.lora;
  if (!lora || lora->from.empty() || r.job.weights) return;
  r.wrong("adapters.lora.from", "the job has no weights, whose name map says which layer each adapter belongs to",
          "set weights.from to the model folder that the adapters were trained with");
}

void packed_weights_are_frozen(RuleContext& r) {
  const JobSpec& job = r.job;
  if (!r.fine({"train.frozen_type"}) || job.train.frozen_type == FrozenType::same) return;
  const std::string type(to_string(job.train.frozen_type));
  if (job.adapters.lora == std::nullopt && job.train.freeze.empty())
    r.wrong("train.frozen_type", "nothing is frozen, so nothing is stored as " + type,
            "add adapters, or name parameters in train.freeze");
  else if (job.train.frozen_type != FrozenType::bf16 && !(job.adapters.lora && job.weights && !job.weights->partial))
    r.wrong("train.frozen_type",
            type + " needs adapters, and weights that contain the whole base: checkpoints have no packed weights",
            "add adapters: {lora: {...}} and weights: {from: ...}, or set train.frozen_type: bf16");
  else if (job.fp8)
    r.wrong("train.frozen_type",
            "weights stored as " + type + " are unpacked to bf16, which precision: fp8 would round",
            "set precision: bf16");
  else if (job.parallel.mode == ParallelMode::hybrid_parallel || job.parallel.mode == ParallelMode::parameter_server)
    r.wrong("train.frozen_type", "is not supported in parallel.mode: " + std::string(to_string(job.parallel.mode)),
            "set another parallel.mode, or remove train.frozen_type");
}

/// DoRA trains the norms of the rows of the loaded weights (adapters.lora.dora).
void dora_starts_from_weights(RuleContext& r) {
  const std::optional<LoraSpec>& lora = r.job.adapters.lora;
  if (!lora || !lora->dora) return;
  if (!r.job.weights)
    r.wrong("adapters.lora.dora", "the job has no weights, whose rows have the norms that it trains",
            "set weights.from to the model folder to fine-tune, or dora: false");
  for (const LayerSpec& layer : r.job.network) {
    const bool trains_bias = layer.attrs.flag("bias", true) && !is_frozen(r.job, layer.name + ".bias");
    const bool is_adapted = !layer.inputs.empty() && !adapter_layers(r.job, layer).empty();
    if ((r.job.precision != Precision::bf16 && r.job.precision != Precision::fp16) || !trains_bias || !is_adapted)
      continue;
    r.wrong("train.freeze",
            "with adapters.lora.dora and precision: " + std::string(to_string(r.job.precision)) + ", " + layer.name +
                ".bias cannot be trained",
            "add '" + layer.name + ".bias' to train.freeze, or set precision: fp32");
    break;
  }
}

/// Several adapters (adapters.names) need a sample field that selects one (adapters.field).
void several_adapters_have_a_field(RuleContext& r) {
  const AdaptersSpec& adapters = r.job.adapters;
  if (adapters.names.empty() && adapters.field.empty()) return;
  if (!adapters.lora)
    r.wrong("adapters", "there are several adapters, but not their form", "add lora: {layers: [...]}");
  else if (adapters.names.empty())
    r.wrong("adapters.field", "the adapters have no names", "set adapters.names: [a, b]");
  else if (adapters.field.empty())
    r.wrong("adapters.names", "no field states which adapter a sample uses",
            "set adapters.field to an integer field of the samples; with chat and text, to a field of the documents");
  else if (const std::vector<std::string> own = {"data", "label", "mask", "documents"};
           r.job.dataset.has_adapters() && std::find(own.begin(), own.end(), adapters.field) != own.end())
    r.wrong("adapters.field", "'" + adapters.field + "' is the name of another field of the samples",
            "rename the field of the documents");
  for (size_t a = 0; a < adapters.names.size(); ++a) {
    const std::string& name = adapters.names[a];
    const std::string path = "adapters.names[" + number(static_cast<int64_t>(a)) + "]";
    if (name.empty() || name.find_first_of("./*?[] ") != std::string::npos)
      r.wrong(path, "'" + name + "' is not a name", "use letters, digits, _ and -");
    else if (std::find(adapters.names.begin(), adapters.names.begin() + static_cast<std::ptrdiff_t>(a), name) !=
             adapters.names.begin() + static_cast<std::ptrdiff_t>(a))
      r.wrong(path, "'" + name + "' is there twice", "each adapter has its own name");
  }
}

}  // namespace trainctl::rules
