// The text of a PTX module, split into its declarations and statements.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace trainctl::emulator {

/// An operand as written.
struct Argument {
  enum class Kind : uint8_t {
    name,  ///< a register, a symbol or a label, optionally with an offset
    integer,
    real,     ///< bits: f32 in the low half, or f64
    address,  ///< [ parts[0] + offset, … ]
    list,     ///< { parts }
    pair,     ///< parts[0] | parts[1]
    sink      ///< _
  };
  Kind kind = Kind::name;
  std::string_view name;
  int64_t value = 0;  ///< an integer, the bits of a real, or an offset
  bool is_f64 = false;
  std::vector<Argument> parts;
};

struct Statement {
  std::string_view predicate;  ///< empty: none
  bool negated = false;
  std::string_view opcode;
  std::vector<std::string_view> words;  ///< parts of the opcode
  std::vector<Argument> arguments;
  bool has(std::string_view word) const;
};

/// Parses one statement: the operands, from after its opcode up to its semicolon.
Statement parse_statement(std::string_view text);

/// `.align 8 .b8 name[24]`, `.u64 name`: what follows .param, .shared, .global, .local or a comma.
struct Declaration {
  std::string_view name, type;
  size_t align = 1, bytes = 0;
  bool open = false;  ///< an array without a size
  std::vector<std::string_view> values;
};
Declaration parse_declaration(std::string_view text);

size_t bytes_of_type(std::string_view type);

/// A function or kernel of a module.
struct FunctionText {
  std::string_view head;  ///< from .entry or .func up to the body
  std::string_view body;  ///< between its braces
  int line = 0;           ///< line where the body begins
};

struct ModuleText {
  explicit ModuleText(std::string text);
  std::string text;
  std::map<std::string_view, FunctionText> functions;
  std::vector<std::string_view> variables;  ///< declarations at the top, with their state spaces
  std::vector<std::string> files;
};

std::string_view trim(std::string_view text);
bool starts_with(std::string_view text, std::string_view head);
std::vector<std::string_view> split(std::string_view text, char at);

}  // namespace trainctl::emulator
