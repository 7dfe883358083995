// JobSpec -> YAML, by the same field table that reads it: every default filled in, the network unrolled.
#include <algorithm>

#include "engine/base/text.h"
#include "engine/spec/fields.h"
#include "engine/spec/parse.h"
#include "engine/spec/read_value.h"

namespace trainctl {
namespace {

bool is_plain(const std::string& text) {
  static const std::vector<std::string> kWords = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"};
  std::string lower = text;
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  const auto inner = [&](char c) { return letter(c) || (c >= '0' && c <= '9') || c == '.' || c == '-' || c == '/'; };
  return !text.empty() && (letter(text[0]) || text[0] == '/') && std::all_of(text.begin(), text.end(), inner) &&
         std::find(kWords.begin(), kWords.end(), lower) == kWords.end();
}

std::string quoted(const std::string& text) {
  if (is_plain(text)) return text;
  std::string result = "\"";
  for (const char c : text) {
    static constexpr char kHex[] = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      result += {'\\', c};
    else if (byte < 0x20 || byte == 0x7F)
      result += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    else
      result += c;
  }
  return result + "\"";
}

std::string scalar(const Value& value) {
  const auto* text = std::get_if<std::string>(&value);
  return text ? quoted(*text) : to_string(value);
}

std::string list(const std::vector<std::string>& items) {
  std::vector<std::string> result;
  for (const std::string& item : items) result.push_back(quoted(item));
  return "[" + join(result) + "]";
}

std::string flow_map(const Attrs& attrs) {
  std::vector<std::string> items;
  for (const auto& [name, value] : attrs) items.push_back(name + ": " + scalar(value));
  return "{" + join(items) + "}";
}

class Writer {
 public:
  explicit Writer(const JobSpec& job) : job_(job) {}

  std::string write() {
    section(job_section(), &job_, 0);
    return std::move(text_);
  }

 private:
  void line(int indent, const std::string& text) {
    text_ += std::string(static_cast<size_t>(indent), ' ') + text + "\n";
  }

  void section(const Section& section, const void* object, int indent) {
    const JobKind kind = job_.has_command() ? JobKind::command : JobKind::network;
    std::string type;
    for (const Field& field : section.fields) {
      if (!belongs_to(field, kind)) continue;
      if (field.name == "type") type = std::get<std::string>(field.get(object));
      if (field.only.empty() || std::find(field.only.begin(), field.only.end(), type) != field.only.end())
        write(field, object, indent);
    }
  }

  void write(const Field& field, const void* object, int indent) {
    switch (field.kind) {
      case FieldKind::section:
        return subsection(field, object, indent);
      case FieldKind::words:
        return line(indent, field.name + ": " + list(job_.command));
      case FieldKind::variables:
        return environment(field, indent);
      case FieldKind::names:
        if (!job_.print.empty()) line(indent, field.name + ": " + list(job_.print));
        return;
      case FieldKind::patterns:
        return recompute(field, indent);
      case FieldKind::transforms:
        return transforms(field, indent);
      case FieldKind::modules:
        return;  // unrolled into the network
      case FieldKind::layers:
        return network(field, indent);
      case FieldKind::stage_map:
        return stage_config(field, indent);
      case FieldKind::strategy_map:
        return strategies(field, indent);
      default:
        break;
    }
    const std::optional<Value> value = value_of(field, object);
    if (!value) return;
    const auto* text = std::get_if<std::string>(&*value);
    if (!text || !text->empty()) line(indent, field.name + ": " + scalar(*value));
  }

  void subsection(const Field& field, const void* object, int indent) {
    // The accessor of an optional section changes nothing unless told to make it.
    const void* inner = field.object(const_cast<void*>(object), false);
    if (!inner) return;
    line(indent, field.name + ":");
    section(*field.section, inner, indent + 2);
  }

  void environment(const Field& field, int indent) {
    if (job_.env.empty()) return;
    line(indent, field.name + ":");
    for (const auto& [name, value] : job_.env) line(indent + 2, quoted(name) + ": " + quoted(value));
  }

  void recompute(const Field& field, int indent) {
    std::vector<std::string> patterns;
    for (const RecomputeRule& rule : job_.parallel.recompute) patterns.push_back(rule.pattern);
    if (!patterns.empty()) line(indent, field.name + ": " + list(patterns));
  }

  void transforms(const Field& field, int indent) {
    if (job_.dataset.transforms.empty()) return;
    line(indent, field.name + ":");
    for (const TransformSpec& transform : job_.dataset.transforms)
      line(indent + 2, transform.attrs.empty() ? "- " + transform.name
                                               : "- {" + transform.name + ": " + flow_map(transform.attrs) + "}");
  }

  void network(const Field& field, int indent) {
    line(indent, field.name + ":");
    for (const LayerSpec& layer : job_.network) {
      std::string text = "- {name: " + quoted(layer.name) + ", type: " + layer.type + ", inputs: " + list(layer.inputs);
      for (const auto& [name, value] : layer.attrs) text += ", " + name + ": " + scalar(value);
      line(indent + 2, text + "}");
    }
  }

  void stage_config(const Field& field, int indent) {
    if (job_.parallel.stage_config.empty()) return;
    line(indent, field.name + ":");
    for (const StageRule& rule : job_.parallel.stage_config)
      line(indent + 2, quoted(rule.pattern) + ": " + std::to_string(rule.stage));
  }

  void strategies(const Field& field, int indent) {
    if (job_.parallel.strategies.empty()) return;
    line(indent, field.name + ":");
    for (const StrategySpec& rule : job_.parallel.strategies)
      line(indent + 2, quoted(rule.pattern) + ": " + to_string(Value(rule.cuts)));
  }

  const JobSpec& job_;
  std::string text_;
};

}  // namespace

std::string to_yaml(const JobSpec& spec) { return Writer(spec).write(); }

}  // namespace trainctl
