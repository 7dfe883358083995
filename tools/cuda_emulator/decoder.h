// Decodes a function of a PTX module into a Kernel.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>

#include "tools/cuda_emulator/instruction.h"
#include "tools/cuda_emulator/ptx_text.h"

namespace trainctl::emulator {

// During decoding, constants are at kConstants + their place and registers at their place; Decoder::finish() moves
// the constants to the front.
inline constexpr int32_t kConstants = 1 << 29;

inline size_t align_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

struct Register {
  int32_t at = 0;
  uint8_t bytes = 0;  ///< 0: a predicate
  bool operator==(const Register&) const = default;
};

struct Symbol {
  Space space = Space::generic;
  uint64_t address = 0;
};

/// A module's own variables.
using Symbols = std::map<std::string, Symbol, std::less<>>;

class Decoder {
 public:
  Decoder(const ModuleText& module, const Symbols& globals) : module_(module), globals_(globals) {}
  Kernel decode(std::string_view name);

  // Functions for the instruction tables:
  /// Returns the register of a source operand of `bytes` bytes per lane. An immediate value becomes a constant of that
  /// size.
  int32_t source(const Argument& a, uint8_t bytes);
  int32_t source_f32(const Argument& a);
  int32_t predicate(const Argument& a);
  Register reg(const Argument& a);
  bool is_register(const Argument& a) { return a.kind == Argument::Kind::name && find_register(a.name).has_value(); }
  int32_t target(const Argument& a, uint8_t bytes);
  /// Sets from[0] (a register of 8 or 4 bytes, as `width` says) and the offset of an address; also the space, if the
  /// address names a symbol.
  void address(const Argument& a, Instruction& in);
  int32_t constant(const void* bytes, size_t n);
  template <class T>
  int32_t constant(T value) {
    T lanes[kLanes];
    for (T& lane : lanes) lane = value;
    return constant(lanes, sizeof lanes);
  }
  const Symbol* symbol(std::string_view name) const;
  [[noreturn]] void fail(const std::string& what) const;

 private:
  struct Scope {
    int id = 0;
    std::unordered_map<std::string, Register> registers;  ///< by name, or by the prefix of numbered ones
    std::unordered_map<std::string, int> counts;          ///< number of registers with a numbered name, by prefix
    std::map<std::string, Symbol, std::less<>> symbols;
  };
  struct Jump {
    size_t at = 0;
    std::string label;
    std::vector<int> scopes;
  };

  void body(std::string_view text);
  void statement(std::string_view text);
  void directive(std::string_view text);
  void line_directive(std::string_view text);
  void call(const Statement& s);
  void emit(const Statement& s, Instruction in);
  void parameters(std::string_view head);
  std::optional<Register> find_register(std::string_view name);
  int32_t new_register(uint8_t bytes);
  void open_scope() {
    scopes_.emplace_back();
    scopes_.back().id = ++scope_count_;
  }
  void label(std::string_view name) {
    labels_[{scopes_.back().id, std::string(name)}] = static_cast<int>(kernel_.code.size());
  }
  void finish();

  const ModuleText& module_;
  const Symbols& globals_;
  Kernel kernel_;
  std::vector<Scope> scopes_;
  int scope_count_ = 0;
  std::map<std::pair<int, std::string>, int> labels_;
  std::vector<Jump> jumps_;
  std::map<std::string, int32_t> constant_at_;
  std::map<std::string, int32_t, std::less<>> special_at_;
  std::map<int32_t, uint8_t> widths_;  ///< widths of registers, by place; special registers excluded
  int32_t next_register_ = 0;
  SourceLine source_;
  int text_line_ = 0;
  std::string_view now_;
  std::string return_label_;  ///< return label of the function being inlined; empty in a kernel
};

/// Sets `run` and the operands of `in`. Returns false if the instruction is not known.
bool decode_arithmetic(Decoder& d, const Statement& s, Instruction& in);
bool decode_conversion(Decoder& d, const Statement& s, Instruction& in);
bool decode_memory(Decoder& d, const Statement& s, Instruction& in);
bool decode_sync(Decoder& d, const Statement& s, Instruction& in);

}  // namespace trainctl::emulator
