// Splits the text of a PTX module into declarations and statements.
#include "tools/cuda_emulator/ptx_text.h"

#include <algorithm>
#include <charconv>
#include <stdexcept>

namespace trainctl::emulator {
namespace {

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '%' || c == '.';
}

[[noreturn]] void fail(const std::string& what, std::string_view text) {
  throw std::runtime_error("PTX: " + what + " in: " + std::string(text.substr(0, 160)));
}

/// Reads a statement's operands from left to right.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  bool at_end() {
    skip_space();
    return at_ == text_.size();
  }
  bool take(char c) {
    skip_space();
    if (at_ < text_.size() && text_[at_] == c) return ++at_, true;
    return false;
  }
  std::string_view word() {
    skip_space();
    const size_t first = at_;
    while (at_ < text_.size() &&
           (is_word(text_[at_]) || (text_[at_] == ':' && at_ + 1 < text_.size() && text_[at_ + 1] == ':') ||
            (text_[at_] == ':' && at_ > first && text_[at_ - 1] == ':')))
      ++at_;
    return text_.substr(first, at_ - first);
  }
  Argument argument() {
    Argument first = single();
    if (!take('|')) return first;
    Argument pair;
    pair.kind = Argument::Kind::pair;
    pair.parts.push_back(std::move(first));
    pair.parts.push_back(single());
    return pair;
  }

 private:
  void skip_space() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }
  void list_until(char end, std::vector<Argument>& to) {
    if (take(end)) return;
    do {
      to.push_back(argument());
    } while (take(','));
    if (!take(end)) fail("an unclosed list", text_);
  }
  int64_t integer(std::string_view digits) {
    uint64_t value = 0;
    int base = 10;
    if (starts_with(digits, "0x") || starts_with(digits, "0X")) digits.remove_prefix(2), base = 16;
    while (!digits.empty() && (digits.back() == 'U' || digits.back() == 'u')) digits.remove_suffix(1);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
    if (error != std::errc() || end != digits.data() + digits.size()) fail("not a number", text_);
    return static_cast<int64_t>(value);
  }
  Argument single() {
    Argument a;
    if (take('[')) {
      a.kind = Argument::Kind::address;
      list_until(']', a.parts);
      return a;
    }
    if (take('{')) {
      a.kind = Argument::Kind::list;
      list_until('}', a.parts);
      return a;
    }
    if (take('(')) {
      a.kind = Argument::Kind::list;
      list_until(')', a.parts);
      return a;
    }
    const bool negative = take('-');
    const std::string_view w = word();
    if (w.empty()) fail("a missing operand", text_);
    if (w == "_") {
      a.kind = Argument::Kind::sink;
    } else if (starts_with(w, "0f") || starts_with(w, "0d")) {
      a.kind = Argument::Kind::real;
      a.is_f64 = w[1] == 'd';
      uint64_t bits = 0;
      std::from_chars(w.data() + 2, w.data() + w.size(), bits, 16);
      a.value = static_cast<int64_t>(bits);
    } else if (std::isdigit(static_cast<unsigned char>(w[0]))) {
      a.kind = Argument::Kind::integer;
      a.value = integer(w);
      if (negative) a.value = -a.value;
    } else {
      a.name = w;
      if (take('+')) {
        const bool minus = take('-');
        a.value = integer(word());
        if (minus) a.value = -a.value;
      }
    }
    return a;
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

std::string_view trim(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front()))) text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
  return text;
}

bool starts_with(std::string_view text, std::string_view head) { return text.substr(0, head.size()) == head; }

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  for (size_t first = 0; first <= text.size();) {
    const size_t end = std::min(text.find(at, first), text.size());
    parts.push_back(text.substr(first, end - first));
    first = end + 1;
  }
  return parts;
}

bool Statement::has(std::string_view word) const { return std::find(words.begin(), words.end(), word) != words.end(); }

Statement parse_statement(std::string_view text) {
  Statement s;
  Reader reader(text);
  if (reader.take('@')) {
    s.negated = reader.take('!');
    s.predicate = reader.word();
  }
  s.opcode = reader.word();
  s.words = split(s.opcode, '.');
  if (reader.at_end()) return s;
  do {
    s.arguments.push_back(reader.argument());
  } while (reader.take(','));
  if (!reader.at_end()) fail("unexpected text after the operands", text);
  return s;
}

size_t bytes_of_type(std::string_view type) {
  if (type == "pred") return 0;
  const size_t digits = type.find_first_of("0123456789");
  if (digits == std::string_view::npos) fail("an unknown type", type);
  return static_cast<size_t>(std::stoi(std::string(type.substr(digits)))) / 8;
}

Declaration parse_declaration(std::string_view text) {
  Declaration d;
  std::string_view head = text;
  if (const size_t equals = text.find('='); equals != std::string_view::npos) {
    head = text.substr(0, equals);
    const size_t open = text.find('{', equals), close = text.rfind('}');
    if (open == std::string_view::npos) {
      d.values.push_back(trim(text.substr(equals + 1)));
    } else {
      for (const std::string_view value : split(text.substr(open + 1, close - open - 1), ','))
        d.values.push_back(trim(value));
    }
  }
  bool align_next = false;
  size_t at = 0;
  while (at < head.size()) {
    while (at < head.size() && (std::isspace(static_cast<unsigned char>(head[at])) || head[at] == '[')) ++at;
    const size_t first = at;
    while (at < head.size() && is_word(head[at])) ++at;
    const std::string_view word = head.substr(first, at - first);
    if (word.empty()) break;
    if (align_next) {
      d.align = std::stoul(std::string(word));
      align_next = false;
    } else if (word == ".align") {
      align_next = true;
    } else if (word[0] == '.') {
      d.type = word.substr(1);
    } else {
      d.name = word;
      break;
    }
  }
  if (d.name.empty()) fail("a missing name", text);
  d.bytes = bytes_of_type(d.type);
  if (d.align == 1) d.align = d.bytes;
  while (at < head.size() && std::isspace(static_cast<unsigned char>(head[at]))) ++at;
  if (at < head.size() && head[at] == '[') {
    const size_t close = head.find(']', at);
    const std::string_view count = trim(head.substr(at + 1, close - at - 1));
    d.open = count.empty();
    d.bytes *= d.open ? 0 : std::stoul(std::string(count));
  }
  return d;
}

namespace {

/// Replaces comments by spaces, so that no `//` or brace in a comment or debug section is taken for code.
void blank_comments(std::string& text) {
  for (size_t at = text.find("//"); at != std::string::npos; at = text.find("//", at)) {
    while (at < text.size() && text[at] != '\n') text[at++] = ' ';
  }
}

/// Reads the declarations of a module one after another, and counts lines.
class ModuleReader {
 public:
  explicit ModuleReader(ModuleText& module) : module_(module), all_(module.text) {}

  void read() {
    while (true) {
      const size_t first = all_.find_first_not_of(" \t\r\n", at_);
      if (first == std::string_view::npos) return;
      move_to(first);
      const std::string_view rest = all_.substr(at_);
      if (starts_with(rest, ".version") || starts_with(rest, ".target") || starts_with(rest, ".address_size"))
        move_to(line_end());
      else if (starts_with(rest, ".file"))
        read_file();
      else if (starts_with(rest, ".section"))
        move_to(all_.find('}', at_) + 1);
      else
        read_declaration();
    }
  }

 private:
  void move_to(size_t to) {
    line_ += static_cast<int>(std::count(all_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         all_.begin() + static_cast<std::ptrdiff_t>(to), '\n'));
    at_ = to;
  }
  size_t line_end() const { return std::min(all_.find('\n', at_), all_.size()); }

  /// Reads a line such as: .file 1 "kernels.cu"
  void read_file() {
    const std::string_view entry = all_.substr(at_, line_end() - at_);
    const size_t open = entry.find('"'), close = entry.rfind('"');
    const size_t number = std::stoul(std::string(trim(entry.substr(5, open - 5))));
    if (module_.files.size() <= number) module_.files.resize(number + 1);
    module_.files[number] = std::string(entry.substr(open + 1, close - open - 1));
    move_to(line_end());
  }

  /// Reads the declaration of a variable, or of a function with or without a body.
  void read_declaration() {
    const size_t end = all_.find_first_of(";{", at_);
    if (end == std::string_view::npos) fail("a declaration without an end", all_.substr(at_));
    const std::string_view head = all_.substr(at_, end - at_);
    const bool entry = head.find(".entry") != std::string_view::npos,
               function = head.find(".func") != std::string_view::npos;
    if (!entry && !function) {
      const size_t stop = all_.find(';', at_);
      module_.variables.push_back(all_.substr(at_, stop - at_));
      return move_to(stop + 1);
    }
    if (all_[end] == ';') return move_to(end + 1);
    move_to(end);
    const size_t close = end_of_body(end);
    std::string_view name = trim(head.substr(head.find(entry ? ".entry" : ".func") + (entry ? 6 : 5)));
    if (!name.empty() && name[0] == '(') name = trim(name.substr(name.find(')') + 1));
    name = trim(name.substr(0, name.find_first_of("( \t\n")));
    module_.functions[name] = {head, all_.substr(end + 1, close - end - 2), line_};
    move_to(close);
  }

  /// Returns the position after the brace that closes the brace at `open`.
  size_t end_of_body(size_t open) const {
    int depth = 0;
    size_t close = open;
    do {
      depth += all_[close] == '{' ? 1 : all_[close] == '}' ? -1 : 0;
      ++close;
    } while (depth > 0);
    return close;
  }

  ModuleText& module_;
  const std::string_view all_;
  size_t at_ = 0;
  int line_ = 1;
};

}  // namespace

ModuleText::ModuleText(std::string from) : text(std::move(from)) {
  blank_comments(text);
  ModuleReader(*this).read();
}

}  // namespace trainctl::emulator
