// Decodes the statements of a PTX function into instructions.
#include "tools/cuda_emulator/decoder.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "tools/cuda_emulator/place_registers.h"

namespace trainctl::emulator {
void Decoder::fail(const std::string& what) const {
  throw std::runtime_error("PTX of " + kernel_.name + ", line " + std::to_string(text_line_) + ": " + what + ": " +
                           std::string(now_));
}

Kernel Decoder::decode(std::string_view name) {
  const auto found = module_.functions.find(name);
  if (found == module_.functions.end()) throw std::runtime_error("PTX: no kernel " + std::string(name));
  const FunctionText& function = found->second;
  kernel_.name = name;
  kernel_.files = module_.files;
  text_line_ = function.line;
  scopes_.clear();
  open_scope();
  kernel_.shared_bytes = 1024;  // the first bytes are the system's
  bool any_dynamic = false;
  size_t dynamic_align = 16;
  for (const std::string_view variable : module_.variables) {
    if (variable.find(".shared") == std::string_view::npos) continue;
    const Declaration d = parse_declaration(variable);
    if (function.body.find(d.name) == std::string_view::npos) continue;
    if (d.open) {
      any_dynamic = true;
      dynamic_align = std::max(dynamic_align, d.align);
      continue;
    }
    kernel_.shared_bytes = align_up(kernel_.shared_bytes, d.align);
    scopes_[0].symbols[std::string(d.name)] = {Space::shared, kernel_.shared_bytes};
    kernel_.shared_bytes += d.bytes;
  }
  parameters(function.head);
  // Shared variables of the body precede the dynamic part.
  for (size_t at = function.body.find(".shared"); at != std::string_view::npos;
       at = function.body.find(".shared", at + 1)) {
    const size_t line = function.body.rfind('\n', at);
    const std::string_view before = trim(function.body.substr(line + 1, at - line - 1));
    if (!before.empty()) continue;
    const Declaration d = parse_declaration(function.body.substr(at, function.body.find(';', at) - at));
    kernel_.shared_bytes = align_up(kernel_.shared_bytes, d.align);
    scopes_[0].symbols[std::string(d.name)] = {Space::shared, kernel_.shared_bytes};
    kernel_.shared_bytes += d.bytes;
  }
  kernel_.dynamic_shared_at = any_dynamic ? align_up(kernel_.shared_bytes, dynamic_align) : kernel_.shared_bytes;
  for (const std::string_view variable : module_.variables) {
    if (variable.find(".shared") == std::string_view::npos) continue;
    const Declaration d = parse_declaration(variable);
    if (d.open) scopes_[0].symbols[std::string(d.name)] = {Space::shared, kernel_.dynamic_shared_at};
  }
  body(function.body);
  finish();
  return std::move(kernel_);
}

void Decoder::parameters(std::string_view head) {
  const size_t open = head.find('('), close = head.find(')');
  if (const size_t at = head.find(".maxntid"); at != std::string_view::npos) {
    kernel_.max_threads = 1;
    const std::string_view rest = head.substr(at + 8);
    for (const std::string_view part : split(rest.substr(0, rest.find('\n')), ','))
      kernel_.max_threads *= std::stoi(std::string(trim(part)));
  }
  if (open == std::string_view::npos || trim(head.substr(open + 1, close - open - 1)).empty()) return;
  for (const std::string_view part : split(head.substr(open + 1, close - open - 1), ',')) {
    const Declaration d = parse_declaration(part);
    const size_t offset = align_up(kernel_.parameter_bytes, d.align);
    kernel_.parameters.push_back({offset, d.bytes});
    kernel_.parameter_bytes = offset + d.bytes;
    scopes_[0].symbols[std::string(d.name)] = {Space::param, offset};
  }
}

void Decoder::body(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const char c = text[at];
    if (c == '\n') ++text_line_;
    if (std::isspace(static_cast<unsigned char>(c)) || c == ';') {
      ++at;
      continue;
    }
    if (c == '{') {
      open_scope();
      ++at;
      continue;
    }
    if (c == '}') {
      scopes_.pop_back();
      ++at;
      continue;
    }
    if (starts_with(text.substr(at), ".loc\t") || starts_with(text.substr(at), ".loc ")) {
      const size_t end = std::min(text.find('\n', at), text.size());
      line_directive(text.substr(at, end - at));
      at = end;
      continue;
    }
    // Reads a label, or a statement up to its semicolon.
    size_t word = at;
    while (word < text.size() &&
           (std::isalnum(static_cast<unsigned char>(text[word])) || text[word] == '_' || text[word] == '$'))
      ++word;
    size_t colon = word;
    while (colon < text.size() && text[colon] == ' ') ++colon;
    if (word > at && colon < text.size() && text[colon] == ':' && text[colon + 1] != ':') {
      label(text.substr(at, word - at));
      at = colon + 1;
      continue;
    }
    const size_t end = text.find(';', at);
    if (end == std::string_view::npos) fail("a statement has no end");
    const std::string_view one = text.substr(at, end - at);
    now_ = one;
    one[0] == '.' ? directive(one) : statement(one);
    text_line_ += static_cast<int>(std::count(one.begin(), one.end(), '\n'));
    at = end + 1;
  }
}

void Decoder::line_directive(std::string_view text) {
  // .loc 1 52 3, or .loc 2 45 3, function_name $L, inlined_at 1 52 3
  const auto numbers = [](std::string_view part, int& file, int& line) {
    std::vector<int> found;
    for (const std::string_view word : split(part, part.find('\t') != std::string_view::npos ? '\t' : ' ')) {
      for (const std::string_view w : split(trim(word), ' ')) {
        if (!w.empty() && std::isdigit(static_cast<unsigned char>(w[0]))) found.push_back(std::stoi(std::string(w)));
      }
    }
    if (found.size() >= 2) file = found[0], line = found[1];
  };
  const SourceLine before = source_;
  source_ = {};
  const std::vector<std::string_view> parts = split(text, ',');
  numbers(parts[0].substr(4), source_.file, source_.line);
  if (source_.line == 0) source_ = before;
  if (parts.size() > 2) {
    const size_t at = parts[2].find("inlined_at");
    if (at != std::string_view::npos) numbers(parts[2].substr(at + 10), source_.caller_file, source_.caller_line);
  }
}

void Decoder::directive(std::string_view text) {
  if (starts_with(text, ".pragma") || starts_with(text, ".shared")) return;  // .shared is already placed
  Scope& scope = scopes_.back();
  if (starts_with(text, ".reg")) {
    std::string_view rest = trim(text.substr(4));
    const size_t space = rest.find_first_of(" \t");
    const auto bytes = static_cast<uint8_t>(bytes_of_type(rest.substr(1, space - 1)));
    for (std::string_view name : split(rest.substr(space), ',')) {
      name = trim(name);
      const size_t open = name.find('<');
      if (open == std::string_view::npos) {
        if (bytes != 0) next_register_ = static_cast<int32_t>(align_up(static_cast<size_t>(next_register_), 64));
        const int32_t at = new_register(bytes);
        scope.registers[std::string(name)] = {at, bytes};
        widths_[at] = bytes;
        continue;
      }
      const int count = std::stoi(std::string(name.substr(open + 1)));
      next_register_ = static_cast<int32_t>(align_up(static_cast<size_t>(next_register_), 64));
      const std::string prefix(name.substr(0, open));
      scope.registers[prefix] = {next_register_, bytes};
      scope.counts[prefix] = count;
      for (int n = 0; n < count; ++n) widths_[new_register(bytes)] = bytes;
    }
    return;
  }
  if (starts_with(text, ".local") || starts_with(text, ".param")) {
    const Declaration d = parse_declaration(text);
    kernel_.local_bytes = align_up(kernel_.local_bytes, std::max<size_t>(d.align, 8));
    scope.symbols[std::string(d.name)] = {Space::local, kernel_.local_bytes};
    kernel_.local_bytes += d.bytes;
    return;
  }
  fail("an unknown directive");
}

void Decoder::statement(std::string_view text) {
  const Statement s = parse_statement(text);
  Instruction in;
  if (s.words[0] == "call") return call(s);
  if (s.words[0] == "bra") {
    in.flow = Flow::branch;
    Jump jump{kernel_.code.size(), std::string(s.arguments.at(0).name), {}};
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) jump.scopes.push_back(scope->id);
    jumps_.push_back(std::move(jump));
    return emit(s, in);
  }
  if (s.words[0] == "ret" && !return_label_.empty()) {
    in.flow = Flow::branch;
    jumps_.push_back({kernel_.code.size(), return_label_, {0}});
    return emit(s, in);
  }
  if (s.words[0] == "ret" || s.words[0] == "exit") {
    in.flow = Flow::exit;
    return emit(s, in);
  }
  if (!decode_arithmetic(*this, s, in) && !decode_conversion(*this, s, in) && !decode_memory(*this, s, in) &&
      !decode_sync(*this, s, in)) {
    fail("an unknown instruction " + std::string(s.opcode));
  }
  emit(s, in);
}

void Decoder::emit(const Statement& s, Instruction in) {
  if (!s.predicate.empty()) {
    Argument a;
    a.name = s.predicate;
    in.predicate = predicate(a);
    in.flip = s.negated ? kAllLanes : 0;
  }
  in.text_line = text_line_;
  in.source = source_;
  kernel_.code.push_back(in);
}

/// Inlines a function of the module at its call. The parameters of the function are variables that the caller has
/// declared.
void Decoder::call(const Statement& s) {
  const Argument* callee = nullptr;
  std::vector<std::string_view> given;
  for (const Argument& a : s.arguments) {
    if (a.kind == Argument::Kind::name) callee = &a;
    if (a.kind != Argument::Kind::list) continue;
    for (const Argument& part : a.parts) given.push_back(part.name);  // results first, as the callee declares them
  }
  if (callee == nullptr) fail("a call without a function");
  const auto found = module_.functions.find(callee->name);
  if (found == module_.functions.end()) {
    if (callee->name != "__assertfail") fail("a call to an unknown function");
    Instruction in;
    decode_sync(*this, parse_statement("trap"), in);
    return emit(s, in);
  }
  const std::string before = return_label_;
  const int line = text_line_;
  return_label_ = "return of call " + std::to_string(kernel_.code.size());
  const std::string mine = return_label_;
  std::vector<Symbol> places;
  for (const std::string_view name : given) {
    const Symbol* place = symbol(name);
    if (place == nullptr) fail("an unknown parameter");
    places.push_back(*place);
  }
  std::vector<Scope> outer;
  outer.swap(scopes_);
  open_scope();
  size_t next = 0;
  std::string_view head = found->second.head;
  for (size_t open = head.find('('); open != std::string_view::npos; open = head.find('(', open + 1)) {
    const size_t close = head.find(')', open);
    for (const std::string_view part : split(head.substr(open + 1, close - open - 1), ',')) {
      scopes_.back().symbols[std::string(parse_declaration(part).name)] = places.at(next++);
    }
  }
  text_line_ = found->second.line;
  body(found->second.body);
  scopes_.swap(outer);
  labels_[{0, mine}] = static_cast<int>(kernel_.code.size());
  return_label_ = before;
  text_line_ = line;
}

void Decoder::finish() {
  Instruction last;
  last.flow = Flow::exit;
  kernel_.code.push_back(last);
  for (const Jump& jump : jumps_) {
    bool found = false;
    for (const int scope : jump.scopes) {
      const auto at = labels_.find({scope, jump.label});
      if (at == labels_.end()) continue;
      kernel_.code[jump.at].target = at->second;
      found = true;
      break;
    }
    if (!found) throw std::runtime_error("PTX of " + kernel_.name + ": no label " + jump.label);
  }
  // Special registers, and registers of results that are never read, keep places of their own before all other
  // registers.
  std::map<int32_t, int32_t> kept;
  int32_t fixed = 0;
  const auto keep = [&](int32_t& at) {
    if (at < 0 || at >= kConstants || widths_.count(at) != 0) return;
    const auto [found, is_new] = kept.try_emplace(at, fixed);
    if (is_new) fixed += 8 * kLanes;
    at = -2 - found->second;  // negative, so that it is not mistaken for an old place
  };
  for (Instruction& in : kernel_.code) {
    for (int32_t& at : in.to) keep(at);
    for (int32_t& at : in.from) keep(at);
  }
  for (SpecialRegister& special : kernel_.specials) keep(special.at);
  next_register_ = place_registers(kernel_.code, widths_, fixed);
  kernel_.constants.resize(align_up(kernel_.constants.size(), 64));
  const auto moved = static_cast<int32_t>(kernel_.constants.size());
  const auto place = [&](int32_t& at) {
    if (at == -1) return;
    at = at >= kConstants ? at - kConstants : at < 0 ? -2 - at + moved : at + moved;
  };
  for (Instruction& in : kernel_.code) {
    place(in.predicate);
    for (int32_t& at : in.to) place(at);
    for (int32_t& at : in.from) place(at);
  }
  for (SpecialRegister& special : kernel_.specials) place(special.at);
  kernel_.register_bytes = align_up(static_cast<size_t>(moved + next_register_), 64);
  for (const Instruction& in : kernel_.code)
    kernel_.bytes_shared |= in.space == Space::shared && in.flow == Flow::plain && in.element_bytes < 4;
}

}  // namespace trainctl::emulator
