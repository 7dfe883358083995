// The expressions of a job, ${4*d}: numbers, texts, names, and what is computed from them.
//
//   or         := and ("or" and)*
//   and        := not ("and" not)*
//   not        := "not" not | comparison
//   comparison := sum (("==" | "!=" | "<" | "<=" | ">" | ">=") sum)?
//   sum        := product (("+" | "-") product)*
//   product    := sign (("*" | "/" | "//" | "%") sign)*
//   sign       := "-" sign | primary
//   primary    := 12 | 0.5 | 1e-3 | 'text' | true | false | name | "(" or ")"
//
// Same as in Python: / gives a float, // and % round down. Integers have 64 bits, and an overflow is an error.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

namespace trainctl {

/// The value of a var, an argument or an expression.
using Constant = std::variant<bool, int64_t, double, std::string>;

using Names = std::map<std::string, Constant, std::less<>>;

/// An error in a text, and where in the text it is, in bytes.
struct ExpressionError {
  size_t at = 0;
  std::string message, hint;
  std::string unknown = {};  ///< the name that is not known; "" for other errors
};

/// "64", "0.5", "true", or the text itself.
std::string to_text(const Constant& value);
/// "a number", "text", "true or false".
std::string kind_of(const Constant& value);
/// Converts an unquoted YAML scalar to the constant that it denotes: a flag, a number or a text.
Constant constant_of(const std::string& scalar);

/// True for a valid name: it consists of letters, digits and '_', begins with no digit, and is no keyword such as
/// `and`.
bool is_var_name(std::string_view name);
/// Returns the regular expression of valid names, for the schema.
std::string var_name_pattern();

/// True if there is an expression in it. "$${" is not an expression: it stands for "${".
bool has_expression(std::string_view text);

/// Replaces the expressions in a text by their values. If the text is a single expression, returns its value, which
/// need not be a text. Throws ExpressionError.
Constant expand_text(std::string_view text, const Names& names);
/// The value of an expression without "${" and "}": tokens >= 64 and language == 'en'. Throws ExpressionError.
Constant evaluate(std::string_view expression, const Names& names);
/// Throws ExpressionError unless the expression, without "${" and "}", can be read. Names are not looked up.
void check_expression(std::string_view expression);
/// Throws ExpressionError unless all its expressions can be read. Names are not looked up.
void check_syntax(std::string_view text);

/// "${" -> "$${": a text that stays as it is when it is read again.
std::string escape_expressions(std::string_view text);

/// The length of the expression that `text` begins with, "${…}"; 0 if it is not closed on its line.
size_t expression_length(std::string_view text);

}  // namespace trainctl
