// Low-rank adapters (LoRA): ordinary layers, added to the layers that adapters.lora names, so plans, programs and
// checkpoints treat them like all others. A dense layer `L` reads x and computes y; it is followed by
//
//   L.lora_dropout  of x, if adapters.lora.dropout is not 0
//   L.lora_a        dense, [rank, features], PyTorch's default initial values, as PEFT
//   L.lora_b        dense, [units, rank], zeros
//   L.lora_scale    alpha / rank, or alpha / sqrt(rank)
//   L.lora          the sum of y and the scaled product, which every reader of L reads in place of y
//
// With adapters.lora.dora there is no L.lora, and readers read
//
//   L.lora_sum      the sum of y and the scaled product
//   L.dora          dora, which gives its rows the norms L.dora.magnitude
//
// or with dropout
//
//   L.lora_product  L's product of the input that was dropped out, without the bias
//   L.lora_sum      the sum of that and the scaled product
//   L.dora          dora
//   L.lora_rest     y without L.lora_product
//   L.lora          the sum of L.dora and L.lora_rest
//
// With adapters.names [one, two] there are L.one.lora_dropout to L.one.lora_b (with dora all of the above),
// L.two.…,
//
//   L.lora_chosen   for each sample the product of its adapter (with dora L.lora, which readers read)
#pragma once

#include <string_view>
#include <vector>

#include "engine/base/error.h"
#include "engine/spec/job_spec.h"

namespace trainctl {

// An adapter's names are that of its layer with these at the end: the parameters, and the sum.
inline constexpr std::string_view kAdapterA = ".lora_a.weight", kAdapterB = ".lora_b.weight", kAdapterSum = ".lora",
                                  kAdapterMagnitude = ".dora.magnitude";

/// The layers that adapters add after `layer`, the sum last; empty if no adapter names it.
std::vector<LayerSpec> adapter_layers(const JobSpec& spec, const LayerSpec& layer);

/// The layer that readers of `layer` read: the last one of its adapter, or itself.
std::string read_layer(const JobSpec& spec, const std::string& layer);

/// The layer that an adapter's layer adapts: "fc1" for "fc1.lora_a"; "" for other layers.
std::string_view adapted_layer(const JobSpec& spec, std::string_view layer);

/// Returns the factor of the adapters' products: alpha / rank, or alpha / sqrt(rank).
double adapter_factor(const LoraSpec& lora);

/// Returns whether a parameter of this name is an adapter's, in a job that has adapters; and in this job.
bool is_adapter_parameter(std::string_view name);
bool is_adapter_parameter(const JobSpec& spec, std::string_view name);

/// True if a parameter is not trained: train.freeze names it, or the job has adapters and no train.freeze. Adapters are
/// always trained.
bool is_frozen(const JobSpec& spec, const std::string& name);

/// The storage of a parameter: train.frozen_type for the frozen weights of dense layers, but that of the last one (a
/// language model's head).
FrozenType storage_of(const JobSpec& spec, const std::string& name);

/// True if checkpoints have no frozen parameters: the job has adapters, and the files of `weights` have all of its
/// base.
bool saves_without_base(const JobSpec& spec);

/// Returns an error for each pattern of adapters.lora.layers that names no dense layer.
std::vector<Diagnostic> check_adapters(const JobSpec& spec);

}  // namespace trainctl
