// Reads a mapping by its fields: reports unknown keys, missing ones, and values of the wrong type.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/spec/fields.h"
#include "engine/spec/problems.h"
#include "engine/spec/yaml_tree.h"

namespace trainctl {

/// A problem for each key that is not in `known`, at the key, with the nearest name. `what` is the owner of the
/// fields: "relu", "parallel". `elsewhere` may know where a key belongs ("" if it does not).
void refuse_unknown_keys(const YamlNode& node, const std::vector<std::string>& known, const std::string& what,
                         const std::string& path, Problems& problems,
                         const std::function<std::string(const std::string& key)>& elsewhere = {});

/// The fields of a layer or transform into Attrs, defaults filled in.
Attrs read_attrs(const YamlNode& node, const std::vector<Field>& fields, const std::string& what,
                 const std::string& path, Problems& problems);

/// False, with a problem, unless `node` is a mapping of not too many entries. `example`: a hint, "e.g. {a: 1}".
bool demand_map(const YamlNode& node, const std::string& path, const std::string& example, Problems& problems);
/// Returns false and reports a problem if there are too many rules: each of them is compared with every layer.
bool demand_few(const SourcePos& pos, const std::string& path, size_t rules, Problems& problems);

}  // namespace trainctl
