// A template as tokens, with trim_blocks and lstrip_blocks, as transformers sets them.
#include "engine/text/jinja/lexer.h"

#include <algorithm>
#include <cctype>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/text/unicode.h"

namespace trainctl::jinja {
namespace {

constexpr std::string_view kBlanks = " \t\n\r\f\v";

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) take_text();
    add(TokenKind::end, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw EnvError("line " + std::to_string(line_) + ": " + what);
  }
  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  bool starts(std::string_view word) const { return std::string_view(source_).substr(at_).starts_with(word); }
  void skip(size_t bytes) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(at_),
                                         source_.begin() + static_cast<ptrdiff_t>(at_ + bytes), '\n'));
    at_ += bytes;
  }

  /// The text up to the next tag, and the tag.
  void take_text() {
    size_t tag = at_;
    const auto is_tag = [&](size_t i) {
      return source_[i] == '{' && i + 1 < source_.size() &&
             std::string_view("{%#").find(source_[i + 1]) != std::string_view::npos;
    };
    while (tag < source_.size() && !is_tag(tag)) ++tag;
    std::string text = source_.substr(at_, tag - at_);
    const bool starts_line = at_ == 0 || source_[at_ - 1] == '\n';
    skip(tag - at_);
    if (at_ == source_.size()) {
      if (!text.empty()) add(TokenKind::text, std::move(text));
      return;
    }
    const char kind = source_[at_ + 1], mark = at_ + 2 < source_.size() ? source_[at_ + 2] : '\0';
    if (mark == '-')
      text.resize(text.find_last_not_of(kBlanks) + 1);
    else if (kind != '{' && mark != '+')
      strip_line_start(text, starts_line);
    if (!text.empty()) add(TokenKind::text, std::move(text));
    skip(mark == '-' || (mark == '+' && kind != '{') ? 3 : 2);
    if (kind == '#')
      take_comment();
    else
      take_tag(kind == '%');
  }

  /// Applies lstrip_blocks: removes blanks between the start of a line and a tag.
  static void strip_line_start(std::string& text, bool starts_line) {
    const size_t last = text.find_last_not_of(" \t");
    if (last == std::string::npos ? starts_line : text[last] == '\n')
      text.resize(last == std::string::npos ? 0 : last + 1);
  }

  void take_comment() {
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) fail("a comment has no #}");
    const char mark = end > at_ ? source_[end - 1] : '\0';
    skip(end + 2 - at_);
    after_tag(mark, true);
  }

  void after_tag(char mark, bool trims) {
    if (mark == '-')
      skip(std::min(source_.find_first_not_of(kBlanks, at_), source_.size()) - at_);
    else if (trims && mark != '+' && starts("\n"))
      skip(1);
  }

  void take_tag(bool is_block) {
    const std::string_view close = is_block ? "%}" : "}}";
    add(is_block ? TokenKind::block_begin : TokenKind::output_begin, "");
    int depth = 0;  // depth of open braces, so that the }} of two nested dicts does not end the tag
    for (;;) {
      skip(std::min(source_.find_first_not_of(kBlanks, at_), source_.size()) - at_);
      if (at_ == source_.size()) fail("a tag has no " + std::string(close));
      const bool has_mark = (source_[at_] == '-' || source_[at_] == '+') && at_ + 1 < source_.size() &&
                            std::string_view(source_).substr(at_ + 1).starts_with(close) &&
                            (is_block || source_[at_] == '-');
      if (has_mark || (depth == 0 && starts(close))) {
        const char mark = has_mark ? source_[at_] : '\0';
        skip(has_mark ? 3 : 2);
        add(is_block ? TokenKind::block_end : TokenKind::output_end, "");
        return after_tag(mark, is_block);
      }
      take_token(depth);
    }
  }

  void take_token(int& depth) {
    const char c = source_[at_];
    if (c == '"' || c == '\'') return take_string(c);
    if (std::isdigit(static_cast<unsigned char>(c))) return take_number();
    if (std::isalpha(static_cast<unsigned char>(c)) || c == '_') {
      size_t end = at_;
      while (end < source_.size() && (std::isalnum(static_cast<unsigned char>(source_[end])) || source_[end] == '_'))
        ++end;
      add(TokenKind::name, source_.substr(at_, end - at_));
      return skip(end - at_);
    }
    for (const std::string_view symbol : {"==", "!=", "<=", ">=", "//", "**"})
      if (starts(symbol)) {
        add(TokenKind::symbol, std::string(symbol));
        return skip(symbol.size());
      }
    if (std::string_view("+-*/%~<>=()[]{}.,:|").find(c) == std::string_view::npos)
      fail("unexpected character '" + source_.substr(at_, std::max<size_t>(code_point(source_, at_).bytes, 1)) + "'");
    if (c == '{') ++depth;
    if (c == '}') --depth;
    add(TokenKind::symbol, std::string(1, c));
    skip(1);
  }

  void take_number() {
    size_t end = at_;
    const auto digits = [&] {
      while (end < source_.size() && (std::isdigit(static_cast<unsigned char>(source_[end])) || source_[end] == '_'))
        ++end;
    };
    digits();
    bool is_real = false;
    if (end + 1 < source_.size() && source_[end] == '.' && std::isdigit(static_cast<unsigned char>(source_[end + 1]))) {
      is_real = true;
      ++end;
      digits();
    }
    size_t exponent = end;
    if (exponent < source_.size() && (source_[exponent] == 'e' || source_[exponent] == 'E')) {
      if (++exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) ++exponent;
      if (exponent < source_.size() && std::isdigit(static_cast<unsigned char>(source_[exponent]))) {
        is_real = true;
        end = exponent;
        digits();
      }
    }
    std::string text = source_.substr(at_, end - at_);
    std::erase(text, '_');
    if (text.size() > 18) fail("the number " + text + " is too long");
    add(is_real ? TokenKind::real : TokenKind::integer, std::move(text));
    skip(end - at_);
  }

  void take_string(char quote) {
    std::string text;
    size_t i = at_ + 1;
    for (; i < source_.size() && source_[i] != quote; ++i) {
      if (source_[i] != '\\' || i + 1 == source_.size()) {
        text += source_[i];
        continue;
      }
      i = take_escape(i + 1, text);
    }
    if (i >= source_.size()) fail("a string is not terminated");
    add(TokenKind::string, std::move(text));
    skip(i + 1 - at_);
  }

  /// Returns the last byte of the escape that begins at `i`, which is after the backslash.
  size_t take_escape(size_t i, std::string& text) const {
    constexpr std::string_view kLetters = "nrtbfva0\\'\"", kValues("\n\r\t\b\f\v\a\0\\'\"", 11);
    const char c = source_[i];
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits > 0 && i + digits < source_.size()) {
      const std::string number = source_.substr(i + 1, digits);
      if (std::all_of(number.begin(), number.end(), [](unsigned char d) { return std::isxdigit(d); })) {
        append_utf8(text, static_cast<char32_t>(std::stoul(number, nullptr, 16)));
        return i + digits;
      }
    }
    const size_t known = kLetters.find(c);
    if (known != std::string_view::npos)
      text += kValues[known];
    else if (c != '\n')
      (text += '\\') += c;
    return i;
  }

  std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize_template(std::string_view source) {
  std::string text(source);
  replace_all(text, "\r\n", "\n");
  if (text.ends_with('\n')) text.pop_back();
  return Lexer(std::move(text)).run();
}

}  // namespace trainctl::jinja
