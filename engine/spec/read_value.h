// Reads one YAML value as the kind that a field requires.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/spec/fields.h"
#include "engine/spec/problems.h"
#include "engine/spec/yaml_tree.h"

namespace trainctl {

/// The largest length, in bytes, of a name, a path or another text of the job.
inline constexpr size_t kMaxTextBytes = 4096;

/// Reads the value of a field. If it is wrong, adds a problem at its position and returns nullopt. Only for the kinds
/// of fields that are stored as a Value: FieldKind::flag to FieldKind::seconds.
std::optional<Value> read_value(const YamlNode& node, const Field& field, const std::string& path, Problems& problems);

/// A list of texts; a single text stands for a list of one. `what` describes an item: "a layer name".
std::vector<std::string> read_texts(const YamlNode& node, const std::string& path, const std::string& what,
                                    Problems& problems);

/// A list of lists of integers, each in the range of `item`.
std::optional<std::vector<Ints>> read_int_lists(const YamlNode& node, const Field& item, const std::string& path,
                                                Problems& problems);

std::optional<int64_t> parse_integer(const std::string& text);
std::optional<double> parse_number(const std::string& text);  ///< finite, decimal

/// "path[3]".
std::string at_index(const std::string& path, size_t index);
/// "path.key"; the key alone at the root.
std::string at_key(const std::string& path, const std::string& key);

}  // namespace trainctl
