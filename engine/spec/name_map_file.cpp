// A file of name maps: what the tensors of a job are called in another tool's file, and how they are laid out there.
#include "engine/spec/name_map_file.h"

#include <algorithm>
#include <optional>

#include "engine/base/text.h"
#include "engine/spec/problems.h"
#include "engine/spec/read_value.h"
#include "engine/spec/yaml_tree.h"

namespace trainctl {
namespace {

using Text = NameMapFile::Text;

class NameMapReader {
 public:
  /// Reads the whole file, section by section.
  NameMapFile read(const YamlNode& root) {
    if (!is_map(root, "a name map")) problems_.throw_if_any();
    demand_keys(root, "", {"prefix", "words", "tensors", "ignore", "fused", "tied", "constants"});
    NameMapFile map;
    if (const YamlNode* node = root.find("prefix")) map.prefix = text(*node, "prefix");
    if (const YamlNode* node = root.find("words")) read_words(*node, map);
    if (const YamlNode* node = root.find("tensors"))
      read_tensors(*node, map);
    else
      problems_.add(root.pos, "tensors", "is missing", "tensors: {ours.weight: theirs.weight, …}");
    if (const YamlNode* node = root.find("ignore")) map.ignore = texts(*node, "ignore");
    if (const YamlNode* node = root.find("fused")) read_fused(*node, map);
    if (const YamlNode* node = root.find("tied")) read_tied(*node, map);
    if (const YamlNode* node = root.find("constants")) read_constants(*node, map);
    problems_.throw_if_any();
    return map;
  }

 private:
  bool is_map(const YamlNode& node, const std::string& path) {
    if (!node.is_map()) problems_.add(node.pos, path, "must be a mapping, not " + describe(node));
    return node.is_map();
  }

  void demand_keys(const YamlNode& map, const std::string& path, const std::vector<std::string>& known) {
    for (const YamlNode::Entry& entry : map.entries)
      if (std::find(known.begin(), known.end(), entry.key) == known.end())
        problems_.add(entry.key_pos, at_key(path, entry.key), "unknown field",
                      did_you_mean(entry.key, known) + " fields: " + join(known));
  }

  Text text(const YamlNode& node, const std::string& path) {
    if (!node.is_scalar() || node.text.empty()) problems_.add(node.pos, path, "must be text, not " + describe(node));
    return {node.text, node.pos};
  }

  std::vector<Text> texts(const YamlNode& node, const std::string& path) {
    if (!node.is_list()) return {text(node, path)};
    if (node.items.empty()) problems_.add(node.pos, path, "is an empty list");
    std::vector<Text> all;
    for (size_t i = 0; i < node.items.size(); ++i) all.push_back(text(node.items[i], at_index(path, i)));
    return all;
  }

  void read_words(const YamlNode& node, NameMapFile& map) {
    if (!is_map(node, "words")) return;
    for (const YamlNode::Entry& entry : node.entries) {
      const std::string path = at_key("words", entry.key);
      NameMapFile::Words words{{entry.key, entry.key_pos}, {}};
      if (entry.value.is_map()) {
        for (const YamlNode::Entry& word : entry.value.entries)
          words.words.emplace_back(word.key, text(word.value, at_key(path, word.key)).text);
      } else {
        for (const Text& word : texts(entry.value, path)) words.words.emplace_back(word.text, word.text);
      }
      map.words.push_back(std::move(words));
    }
  }

  void read_tensors(const YamlNode& node, NameMapFile& map) {
    if (!is_map(node, "tensors")) return;
    for (const YamlNode::Entry& entry : node.entries) {
      const std::string path = at_key("tensors", entry.key);
      NameMapFile::Tensor tensor{{entry.key, entry.key_pos}, {}, {}, {}, {}};
      if (!entry.value.is_map()) {
        tensor.theirs = texts(entry.value, path);
      } else {
        demand_keys(entry.value, path, {"name", "each", "order", "sizes"});
        if (const YamlNode* name = entry.value.find("name"))
          tensor.theirs = texts(*name, at_key(path, "name"));
        else
          problems_.add(entry.value.pos, at_key(path, "name"), "is missing");
        if (const YamlNode* order = entry.value.find("order")) tensor.order = text(*order, at_key(path, "order"));
        if (const YamlNode* sizes = entry.value.find("sizes")) read_sizes(*sizes, at_key(path, "sizes"), tensor.sizes);
        if (const YamlNode* each = entry.value.find("each")) read_each(*each, at_key(path, "each"), tensor);
      }
      map.tensors.push_back(std::move(tensor));
    }
  }

  void read_sizes(const YamlNode& node, const std::string& path, std::vector<NameMapFile::Size>& sizes) {
    if (!is_map(node, path)) return;
    for (const YamlNode::Entry& entry : node.entries)
      sizes.push_back({{entry.key, entry.key_pos}, texts(entry.value, at_key(path, entry.key))});
  }

  void read_each(const YamlNode& node, const std::string& path, NameMapFile::Tensor& tensor) {
    std::vector<NameMapFile::Size> each;
    read_sizes(node, path, each);
    if (each.size() == 1)
      tensor.each = each[0];
    else if (node.is_map())
      problems_.add(node.pos, path, "must have one placeholder", "e.g. each: {e: h.{i}.moe.experts}");
  }

  void read_fused(const YamlNode& node, NameMapFile& map) {
    if (!is_map(node, "fused")) return;
    for (const YamlNode::Entry& entry : node.entries)
      map.fused.push_back({{entry.key, entry.key_pos}, texts(entry.value, at_key("fused", entry.key))});
  }

  void read_tied(const YamlNode& node, NameMapFile& map) {
    if (!is_map(node, "tied")) return;
    for (const YamlNode::Entry& entry : node.entries)
      map.tied.push_back({{entry.key, entry.key_pos}, text(entry.value, at_key("tied", entry.key))});
  }

  void read_constants(const YamlNode& node, NameMapFile& map) {
    if (!is_map(node, "constants")) return;
    for (const YamlNode::Entry& entry : node.entries) {
      const std::string path = at_key("constants", entry.key);
      if (!is_map(entry.value, path)) continue;
      demand_keys(entry.value, path, {"with", "dtype", "value"});
      NameMapFile::Constant constant{{entry.key, entry.key_pos}, {}, {}};
      for (const auto& [name, to] : {std::pair{"with", &constant.with}, std::pair{"dtype", &constant.dtype}}) {
        const YamlNode* value = entry.value.find(name);
        if (value == nullptr)
          problems_.add(entry.value.pos, at_key(path, name), "is missing");
        else
          *to = text(*value, at_key(path, name));
      }
      if (const YamlNode* value = entry.value.find("value")) {
        constant.is_steps = value->is_scalar() && value->text == "steps";
        const std::optional<int64_t> number = value->is_scalar() ? parse_integer(value->text) : std::nullopt;
        if (!number && !constant.is_steps)
          problems_.add(value->pos, at_key(path, "value"), "must be an integer or steps, not " + describe(*value));
        constant.value = number.value_or(0);
      }
      map.constants.push_back(std::move(constant));
    }
  }

  Problems problems_;
};

}  // namespace

NameMapFile read_name_map(std::string_view text, const std::string& file) {
  return NameMapReader().read(read_yaml(text, file));
}

}  // namespace trainctl
