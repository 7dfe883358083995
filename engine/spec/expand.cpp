// Replaces the expressions in a job's tree by their values, before anything else is read from it.
#include "engine/spec/expand.h"

#include <algorithm>

#include "engine/spec/read_value.h"

namespace trainctl {
namespace {

bool has_dollar(const std::string& text) { return text.find("${") != std::string::npos; }

/// True for keys that are kept in a layer whose `if` is false, because other layers may refer to it.
bool is_kept(const std::string& key) {
  return key == "if" || key == "name" || key == "inputs" || key == "type" || key == "module";
}

}  // namespace

bool has_expressions(const YamlNode& node) {
  return has_dollar(node.text) || std::any_of(node.items.begin(), node.items.end(), has_expressions) ||
         std::any_of(node.entries.begin(), node.entries.end(), [](const YamlNode::Entry& entry) {
           return has_dollar(entry.key) || has_expressions(entry.value);
         });
}

SourcePos Expander::position(const SourcePos& pos, const std::string& text, size_t at) const {
  const size_t begin = text.rfind("${", at);
  if (!pos.known() || pos.file != file_ || begin == std::string::npos) return pos;
  size_t count = 0;
  for (size_t i = text.find("${"); i < begin; i = text.find("${", i + 2)) ++count;
  const auto line = static_cast<size_t>(pos.line - 1);
  const std::string_view in_line = source_.line(line);
  size_t column = 0;  // counted in bytes, whereas SourcePos counts characters
  for (int characters = 1; characters < pos.column && column < in_line.size(); ++characters) do
      ++column;
    while (column < in_line.size() && (static_cast<unsigned char>(in_line[column]) & 0xC0) == 0x80);
  const size_t start = source_.offset_of(line, column);
  const std::string_view rest = source_.from(start);
  size_t found = rest.find("${");
  for (; count > 0 && found != std::string_view::npos; --count) found = rest.find("${", found + 2);
  if (found == std::string_view::npos) return pos;
  // If the value has escapes in quotes, the source differs from the text. Then the position is that of the beginning of
  // the expression.
  const std::string_view upto = std::string_view(text).substr(begin, at - begin);
  return source_.at_offset(start + found + (rest.substr(found).starts_with(upto) ? at - begin : 0));
}

void Expander::report(const ExpressionError& error, const std::string& text, const SourcePos& pos,
                      const std::string& path) {
  problems_.add(position(pos, text, error.at), path, error.message, error.hint);
}

bool Expander::expand_text_of(YamlNode& node, const Names& names, const std::string& path) {
  try {
    const Constant value = expand_text(node.text, names);
    const bool is_one = node.text.starts_with("${") && expression_length(node.text) == node.text.size();
    node.text = to_text(value);
    if (is_one) node.quoted = std::holds_alternative<std::string>(value);
    node.computed = true;
    return true;
  } catch (const ExpressionError& error) {
    report(error, node.text, node.pos, path);
    return false;
  }
}

bool Expander::expand_key(YamlNode& map, size_t index, const Names& names, const std::string& path) {
  YamlNode::Entry& entry = map.entries[index];
  try {
    entry.key = to_text(expand_text(entry.key, names));
  } catch (const ExpressionError& error) {
    report(error, entry.key, entry.key_pos, path);
    return false;
  }
  for (size_t i = 0; i < map.entries.size(); ++i) {
    if (i == index || map.entries[i].key != entry.key) continue;
    problems_.add(entry.key_pos, path, "the key '" + entry.key + "' appears twice");
    return false;
  }
  return true;
}

bool Expander::expand(YamlNode& node, const Names& names, const std::string& path) {
  if (problems_.full()) return false;
  bool good = !has_dollar(node.text) || expand_text_of(node, names, path);
  for (size_t i = 0; i < node.items.size(); ++i) good = expand(node.items[i], names, at_index(path, i)) && good;
  for (size_t i = 0; i < node.entries.size(); ++i) {
    const std::string where = at_key(path, node.entries[i].key);
    if (has_dollar(node.entries[i].key)) good = expand_key(node, i, names, where) && good;
    good = expand(node.entries[i].value, names, where) && good;
  }
  return good;
}

bool Expander::expand_layers(YamlNode& list, const Names& names, const std::string& path) {
  if (!list.is_list()) return expand(list, names, path);
  bool good = true;
  for (size_t i = 0; i < list.items.size(); ++i) {
    YamlNode& layer = list.items[i];
    const std::string where = at_index(path, i);
    if (YamlNode* condition = layer.find("if")) {
      good = expand(*condition, names, at_key(where, "if")) && good;
      if (condition->is_scalar() && condition->text == "false")
        std::erase_if(layer.entries, [](const YamlNode::Entry& entry) { return !is_kept(entry.key); });
    }
    YamlNode with;
    YamlNode* arguments = layer.find("module") != nullptr ? layer.find("with") : nullptr;
    if (arguments != nullptr) std::swap(with, *arguments);
    good = expand(layer, names, where) && good;
    if (arguments != nullptr) std::swap(with, *arguments);
  }
  return good;
}

void Expander::check_syntax(const YamlNode& node, const std::string& path) {
  const auto check = [&](const std::string& text, const SourcePos& pos, const std::string& where) {
    try {
      if (has_dollar(text)) trainctl::check_syntax(text);
    } catch (const ExpressionError& error) {
      report(error, text, pos, where);
    }
  };
  check(node.text, node.pos, path);
  for (size_t i = 0; i < node.items.size(); ++i) check_syntax(node.items[i], at_index(path, i));
  for (const YamlNode::Entry& entry : node.entries) {
    check(entry.key, entry.key_pos, at_key(path, entry.key));
    check_syntax(entry.value, at_key(path, entry.key));
  }
}

std::optional<Constant> Expander::constant(const YamlNode& node, const Names& names, const std::string& path,
                                           const YamlNode* siblings) {
  if (!node.is_scalar()) {
    problems_.add(node.pos, path, "must be a number, text, true or false, not " + describe(node));
    return {};
  }
  if (!has_dollar(node.text)) return node.quoted ? Constant(node.text) : constant_of(node.text);
  try {
    const Constant value = expand_text(node.text, names);
    const auto* text = std::get_if<std::string>(&value);
    const bool is_one = node.text.starts_with("${") && expression_length(node.text) == node.text.size();
    return text == nullptr || is_one || node.quoted ? value : constant_of(*text);
  } catch (ExpressionError& error) {
    if (siblings != nullptr && siblings->find(error.unknown) != nullptr) {
      const YamlNode* other = siblings->find(error.unknown);
      if (other < &node) return {};  // the var comes before this one, and has an error of its own
      error.message =
          other == &node ? "'" + error.unknown + "' uses itself" : "'" + error.unknown + "' is defined later";
      error.hint = "a value may use only names defined before it";
    }
    report(error, node.text, node.pos, path);
    return {};
  }
}

Names read_vars(const YamlNode& root, Expander& expander, Problems& problems) {
  Names names;
  const YamlNode* vars = root.find("vars");
  if (vars == nullptr || vars->is_null()) return names;
  if (!vars->is_map()) {
    problems.add(vars->pos, "vars", "must be a mapping, not " + describe(*vars), "e.g. vars: {d: 768, heads: 12}");
    return names;
  }
  for (const YamlNode::Entry& entry : vars->entries) {
    const std::string path = at_key("vars", entry.key);
    if (!is_var_name(entry.key)) {
      problems.add(entry.key_pos, path, "'" + entry.key + "' is not a valid name for a var",
                   "a name consists of letters, digits and '_', does not start with a digit, and is not and, or, not");
      continue;
    }
    if (std::optional<Constant> value = expander.constant(entry.value, names, path, vars))
      names.insert_or_assign(entry.key, std::move(*value));
  }
  return names;
}

bool expand_job(YamlNode& root, const Names& vars, Expander& expander) {
  bool good = true;
  for (YamlNode::Entry& entry : root.entries) {
    if (entry.key == "vars" || entry.key == "modules") continue;
    good = (entry.key == "network" ? expander.expand_layers(entry.value, vars, entry.key)
                                   : expander.expand(entry.value, vars, entry.key)) &&
           good;
  }
  return good;
}

}  // namespace trainctl
