// Overrides on the command line: `a.b=c`.
#include "engine/spec/overrides.h"

#include <algorithm>

#include "engine/base/text.h"
#include "engine/spec/read_value.h"

namespace trainctl {
namespace {

const SourcePos kCommandLine = {"command line", 0, 0};

void forget_positions(YamlNode& node) {
  node.pos = kCommandLine;
  for (YamlNode& item : node.items) forget_positions(item);
  for (YamlNode::Entry& entry : node.entries) {
    entry.key_pos = kCommandLine;
    forget_positions(entry.value);
  }
}

bool starts_with_name(std::string_view rest, std::string_view name) {
  return rest.starts_with(name) && (rest.size() == name.size() || rest[name.size()] == '.' || rest[name.size()] == '[');
}

/// Walks from the root to the field, one step at a time.
class Walk {
 public:
  Walk(YamlNode& root, std::string_view path) : node_(&root), rest_(path) {}

  /// The node to set; or null, and the reason in `error`.
  YamlNode* find(std::string& error) {
    if (rest_.empty()) error = "names no field";
    for (int steps = 0; !rest_.empty() && error.empty(); ++steps) {
      if (steps == kMaxYamlDepth)
        error = "goes deeper than a job file may";
      else if (rest_.front() == '[')
        step_index(error);
      else if (node_->is_list())
        step_item(error);
      else
        step_key(error);
    }
    return error.empty() ? node_ : nullptr;
  }

 private:
  void take(size_t length) {
    path_ += rest_.substr(0, length);
    rest_.remove_prefix(length);
  }

  std::string here() const {
    if (path_.empty()) return "the job";
    return path_.ends_with('.') ? path_.substr(0, path_.size() - 1) : path_;
  }

  void step_index(std::string& error) {
    const size_t end = rest_.find(']');
    const auto index =
        end == std::string_view::npos ? std::nullopt : parse_integer(std::string(rest_.substr(1, end - 1)));
    if (!index) {
      error = "has no index in '" + std::string(rest_) + "'";
    } else if (!node_->is_list()) {
      error = here() + " is " + describe(*node_) + ", not a list";
    } else if (*index < 0 || *index >= static_cast<int64_t>(node_->items.size())) {
      error = here() + " has " + std::to_string(node_->items.size()) + " items, counted from 0";
    } else {
      node_ = &node_->items[static_cast<size_t>(*index)];
      take(end + 1);
      after_step(error);
    }
  }

  /// `network.layer1`: the item with `name: layer1`.
  void step_item(std::string& error) {
    std::vector<std::string> names;
    YamlNode* best = nullptr;
    size_t length = 0;
    for (YamlNode& item : node_->items) {
      const YamlNode* name = item.find("name");
      if (!name || !name->is_scalar() || name->text.empty()) continue;
      names.push_back(name->text);
      if (name->text.size() > length && starts_with_name(rest_, name->text)) {
        best = &item;
        length = name->text.size();
      }
    }
    if (!best) {
      const std::string guess = did_you_mean(rest_.substr(0, rest_.find_first_of(".[")), names);
      error = here() + " has no item of that name" + (guess.empty() ? "" : "; " + guess);
      return;
    }
    node_ = best;
    take(length);
    after_step(error);
  }

  void step_key(std::string& error) {
    if (node_->is_scalar()) {
      error = here() + " is " + describe(*node_) + ", which has no fields; give it whole";
      return;
    }
    if (node_->is_null()) {
      *node_ = YamlNode{};
      node_->kind = YamlNode::Kind::map;
      node_->pos = kCommandLine;
    }
    YamlNode::Entry* best = nullptr;
    size_t length = 0;
    for (YamlNode::Entry& entry : node_->entries) {
      if (entry.key.size() > length && starts_with_name(rest_, entry.key)) {
        best = &entry;
        length = entry.key.size();
      }
    }
    if (!best) {
      const bool takes_all = path_ == "parallel.strategies." || path_ == "parallel.stage_config.";
      length = takes_all ? rest_.size() : std::min(rest_.find_first_of(".["), rest_.size());
      if (length == 0) {
        error = "has an empty name in it";
        return;
      }
      node_->entries.push_back({std::string(rest_.substr(0, length)), kCommandLine, {}});
      best = &node_->entries.back();
      best->value.pos = kCommandLine;
    }
    node_ = &best->value;
    take(length);
    after_step(error);
  }

  void after_step(std::string& error) {
    if (rest_.empty() || rest_.front() == '[') return;
    if (rest_.front() != '.' || rest_.size() == 1)
      error = "ends in '" + std::string(rest_) + "'";
    else
      take(1);
  }

  YamlNode* node_;
  std::string_view rest_;
  std::string path_;  ///< the path walked so far
};

}  // namespace

void apply_override(YamlNode& root, const std::string& text, Problems& problems) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos) {
    problems.add(kCommandLine, "", "'" + text + "' is not an override", "write field=value, e.g. parallel.stages=2");
    return;
  }
  const std::string path = text.substr(0, equals);
  YamlNode value;
  try {
    value = read_yaml(text.substr(equals + 1), "command line");
  } catch (const SpecError& e) {
    problems.add(kCommandLine, path, "the value of '" + text + "' cannot be read: " + e.diagnostics()[0].message);
    return;
  }
  forget_positions(value);
  std::string error;
  if (YamlNode* target = Walk(root, path).find(error))
    *target = std::move(value);
  else
    problems.add(kCommandLine, "", "'" + text + "': " + error);
}

}  // namespace trainctl
