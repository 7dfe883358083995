// Replaces the expressions in a job's tree by their values, before anything else is read from it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "engine/spec/expression.h"
#include "engine/spec/problems.h"
#include "engine/spec/yaml_source.h"
#include "engine/spec/yaml_tree.h"

namespace trainctl {

class Expander {
 public:
  /// `source`: the text of the job, for positions inside of values. It must outlive the object.
  Expander(std::string_view source, const std::string& file, Problems& problems)
      : source_(source, file), file_(file), problems_(problems) {}

  // These functions return false after adding problems. The tree must then not be read.

  /// Replaces the expressions in every value and key of the node.
  bool expand(YamlNode& node, const Names& names, const std::string& path);
  /// The same for a list of layers. The arguments of modules (`with`) stay as they are written, since an index may be
  /// in them; of layers whose `if` is false only the name and the inputs are kept.
  bool expand_layers(YamlNode& list, const Names& names, const std::string& path);
  /// Checks the expressions of a node without their values.
  void check_syntax(const YamlNode& node, const std::string& path);

  /// The value of a var or an argument; empty: problems were added. `siblings`: the mapping that it is in, some of
  /// whose names come later.
  std::optional<Constant> constant(const YamlNode& node, const Names& names, const std::string& path,
                                   const YamlNode* siblings = nullptr);

 private:
  void report(const ExpressionError& error, const std::string& text, const SourcePos& pos, const std::string& path);
  /// The position of byte `at` of a value that begins at `pos` and has this text.
  SourcePos position(const SourcePos& pos, const std::string& text, size_t at) const;
  bool expand_text_of(YamlNode& node, const Names& names, const std::string& path);
  bool expand_key(YamlNode& map, size_t index, const Names& names, const std::string& path);

  YamlSource source_;
  const std::string file_;
  Problems& problems_;
};

/// True if an expression, or an escaped one, is in the node.
bool has_expressions(const YamlNode& node);

/// Reads the vars of the job. The expression of a var may use the vars before it.
Names read_vars(const YamlNode& root, Expander& expander, Problems& problems);

/// Replaces the expressions in the whole job except vars and modules. Returns false after adding problems.
bool expand_job(YamlNode& root, const Names& vars, Expander& expander);

}  // namespace trainctl
