// Errors about fields that a job, or a section of it, may not have.
#pragma once

#include <string>

#include "engine/spec/fields.h"
#include "engine/spec/problems.h"
#include "engine/spec/yaml_tree.h"

namespace trainctl {

/// Reports a section that is given as one value or a list.
void refuse_one_value(const YamlNode& node, const Section& section, const std::string& path, Problems& problems);

/// Reports the keys of `node` that are not fields of `section`, with hints that name only fields that this kind of job
/// and this type of the section may have. `what`: the section in a sentence, "a job" or "dataset".
void refuse_unknown_fields(const YamlNode& node, const Section& section, JobKind kind, const std::string& what,
                           const std::string& path, Problems& problems);

/// Reports a field that sections of this `type` do not have.
void refuse_field_of_type(const Field& field, const std::string& type, const SourcePos& pos, const std::string& where,
                          Problems& problems);

/// Reports a field that jobs of this kind do not have.
void refuse_field_of_job(const Field& field, const Section& section, JobKind kind, const SourcePos& pos,
                         const std::string& where, Problems& problems);

}  // namespace trainctl
