// YAML text as a tree that keeps the position of every value, with aliases and merge keys resolved and with limits
// on size, depth and expansion. Only yaml_tree.cpp includes yaml-cpp.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/source_pos.h"

namespace trainctl {

inline constexpr size_t kMaxYamlBytes = size_t{1} << 20;
inline constexpr int kMaxYamlDepth = 32;
inline constexpr int kMaxYamlNodes = 200'000;  ///< after aliases are expanded

struct YamlNode {
  enum class Kind : uint8_t { null, scalar, list, map };
  struct Entry;

  Kind kind = Kind::null;
  bool quoted = false;          ///< scalar: written in quotes or as a block, so never a number or a flag
  bool computed = false;        ///< scalar: the value of an expression
  SourcePos pos;                ///< where the value starts; unknown for a value given on the command line
  std::string text;             ///< scalar; null: the word for it, "" if nothing is written
  std::vector<YamlNode> items;  ///< list
  std::vector<Entry> entries;   ///< map, in the order of the file, keys unique

  bool is_null() const { return kind == Kind::null; }
  bool is_scalar() const { return kind == Kind::scalar; }
  bool is_list() const { return kind == Kind::list; }
  bool is_map() const { return kind == Kind::map; }
  const YamlNode* find(std::string_view key) const;  ///< the value of `key`, or null
  YamlNode* find(std::string_view key);
};

struct YamlNode::Entry {
  std::string key;
  SourcePos key_pos;
  YamlNode value;
};

/// Reads one YAML document. Throws SpecError (one diagnostic: a reader cannot continue after bad syntax).
YamlNode read_yaml(std::string_view text, const std::string& file);

/// "'abc'", "a list", "a mapping", "nothing": how messages describe the value found.
std::string describe(const YamlNode& node);

}  // namespace trainctl
