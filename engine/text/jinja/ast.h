// The syntax tree of a chat template, a subset of Jinja.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/text/jinja/value.h"

namespace trainctl::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

enum class ExpressionKind : uint8_t {
  constant,     ///< value
  name,         ///< text
  list,         ///< parts
  dict,         ///< parts: key, value, key, value, …
  attribute,    ///< parts[0].text
  item,         ///< parts[0][parts[1]]
  slice,        ///< parts[0][parts[1]:parts[2]:parts[3]]; a null part is left out
  call,         ///< parts[0](arguments)
  filter,       ///< parts[0] | text(arguments)
  test,         ///< parts[0] is text(arguments)
  unary,        ///< text parts[0]
  binary,       ///< parts[0] text parts[1]
  comparison,   ///< parts[0] operators[0] parts[1] operators[1] parts[2] …
  conditional,  ///< parts[1] if parts[0] else parts[2], which may be null
};

struct Expression {
  ExpressionKind kind = ExpressionKind::constant;
  int line = 0;
  std::string text = {};
  Value value = {};
  std::vector<ExpressionPtr> parts = {};
  std::vector<std::string> operators = {};
  std::vector<ExpressionPtr> arguments = {};
  std::vector<std::pair<std::string, ExpressionPtr>> named_arguments = {};
};

struct Statement;
using Body = std::vector<std::unique_ptr<Statement>>;

enum class StatementKind : uint8_t {
  text,          ///< text
  output,        ///< expression
  conditional,   ///< if expression: body, else: otherwise
  loop,          ///< for targets in expression if condition: body, else: otherwise
  assign,        ///< targets = expression, or text.attribute = expression
  assign_block,  ///< targets[0] = body
  macro,         ///< text(parameters): body
  generation,    ///< body, which an assistant generates
  break_loop,
  continue_loop,
};

struct Statement {
  StatementKind kind = StatementKind::text;
  int line = 0;
  std::string text = {}, attribute = {};
  std::vector<std::string> targets = {};
  ExpressionPtr expression = {}, condition = {};
  Body body = {}, otherwise = {};
  std::vector<std::pair<std::string, ExpressionPtr>> parameters = {};  ///< with defaults; null: none
};

}  // namespace trainctl::jinja
