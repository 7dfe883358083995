// Reads the fields of dataset that have a form of their own. Errors go to `problems`.
#pragma once

#include <string>
#include <vector>

#include "engine/spec/fields.h"
#include "engine/spec/job_spec.h"
#include "engine/spec/problems.h"
#include "engine/spec/yaml_tree.h"

namespace trainctl {

/// One path, or a list of paths.
void read_paths(const YamlNode& node, const std::string& path, std::vector<std::string>& to, Problems& problems);
/// Reads dataset.mix, such as `{code: 0.3, web: 0.7}`.
std::vector<SourceShare> read_shares(const YamlNode& node, const std::string& path, Problems& problems);
/// Reads dataset.mix_schedule, such as `[{step: 1000, mix: {code: 0.6, web: 0.4}, ramp: 200}]`.
void read_share_changes(const YamlNode& node, DatasetSpec& mix, const std::string& path, Problems& problems);
/// `{code: code/held_out.jsonl}`.
void read_named_paths(const YamlNode& node, DatasetSpec& set, const std::string& path, Problems& problems);
/// Reads dataset.fields, such as `{image: jpg, features: [a, b]}`.
void read_sample_fields(const YamlNode& node, DatasetSpec& set, const std::string& path, Problems& problems);
/// Reads dataset.split, such as `test` or `{train: 0.9, validation: 0.1}`. `object` is the DatasetSpec that `field`
/// belongs to.
void read_split(const YamlNode& node, const Field& field, void* object, const std::string& path, Problems& problems);
/// A list for the first field of the samples, or a list for each of several fields.
void read_transforms(const YamlNode& node, DatasetSpec& set, const std::string& path, Problems& problems);

}  // namespace trainctl
