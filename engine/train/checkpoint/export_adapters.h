// Exports the adapters of a checkpoint as a folder that PEFT opens: PeftModel.from_pretrained(model, folder).
#pragma once

#include <cstdint>
#include <string>

#include "engine/graph/dtype.h"
#include "engine/spec/job_spec.h"
#include "engine/train/checkpoint/manifest.h"
#include "engine/train/checkpoint/name_map.h"
#include "engine/train/files/disk.h"

namespace trainctl {

struct ExportedAdapters {
  int64_t modules = 0;  ///< number of modules with an adapter
  int64_t bytes = 0;
};

/// Writes adapter_config.json and adapter_model.safetensors into `folder`, which exists. `job`: the job of the
/// checkpoint, which has adapters. Throws EnvError if the job trained something else too, or if the format cannot
/// represent an adapter.
ExportedAdapters export_adapters(const Manifest& manifest, const std::string& directory, const JobSpec& job,
                                 const NameMap& map, DType dtype, const std::string& folder, Disk& disk = real_disk());

}  // namespace trainctl
