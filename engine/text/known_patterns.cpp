// Patterns of well-known tokenizers as loops over characters, several times as fast as a regular expression. Each
// function returns the end of the match that begins at `at`, in the order of the alternatives.
#include "engine/text/known_patterns.h"

#include <array>

#include "engine/base/text.h"
#include "engine/text/unicode.h"

namespace trainctl {

const std::string_view kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const std::string_view kLlama3Pattern = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})"
                                        R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string_view kQwen2Pattern = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})"
                                       R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

namespace {

using namespace char_class;

constexpr uint8_t kLetterOrNumber = kLetter | kNumber, kNoSymbol = kLetter | kNumber | kSpace;

/// A text with the classes of its characters.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text), classes_(char_classes()) {}

  size_t size() const { return text_.size(); }
  char byte(size_t at) const { return at < text_.size() ? text_[at] : '\0'; }

  struct Char {
    uint8_t classes = 0;
    uint32_t bytes = 0;  ///< length of the character; 0 at the end of the text
  };
  Char at(size_t at) const {
    if (at >= text_.size()) return {};
    const auto first = static_cast<unsigned char>(text_[at]);
    if (first < 0x80) return {classes_[first], 1};
    const CodePoint c = code_point(text_, at);
    return {classes_[c.value], c.bytes};
  }
  /// The end of the run of characters of these classes, at most `most` of them.
  size_t run(size_t from, uint8_t classes, size_t most = std::string_view::npos) const {
    for (Char c = at(from); most > 0 && c.bytes > 0 && (c.classes & classes) != 0; c = at(from), --most)
      from += c.bytes;
    return from;
  }
  /// The end of the run of characters of none of these classes.
  size_t run_without(size_t from, uint8_t classes) const {
    for (Char c = at(from); c.bytes > 0 && (c.classes & classes) == 0; c = at(from)) from += c.bytes;
    return from;
  }
  std::string_view text() const { return text_; }

 private:
  std::string_view text_;
  const uint8_t* classes_;
};

/// The end of 's, 't, 're, 've, 'm, 'll or 'd at `at`, or `at`.
size_t contraction(const Scanner& text, size_t at, bool any_case) {
  const auto letter = [&](size_t place) {
    const char c = text.byte(place);
    return any_case ? lower_case(c) : c;
  };
  const char a = letter(at + 1), b = letter(at + 2);
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return at + 2;
  if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return at + 3;
  constexpr std::string_view kLongS = "\xC5\xBF";  // the long s, which equals s if case is ignored
  if (any_case && text.text().substr(at + 1).starts_with(kLongS)) return at + 1 + kLongS.size();
  return at;
}

/// The end of a match of \s+(?!\S)|\s+ at `at`, where white space begins.
size_t white_space(const Scanner& text, size_t at) {
  size_t last = at, end = at;
  for (auto c = text.at(end); c.bytes > 0 && (c.classes & kSpace) != 0; c = text.at(end)) {
    last = end;
    end += c.bytes;
  }
  return end == text.size() || last == at ? end : last;
}

size_t gpt2_end(const Scanner& text, size_t at) {
  if (text.byte(at) == '\'')
    if (const size_t end = contraction(text, at, false); end > at) return end;
  const size_t word = text.byte(at) == ' ' ? at + 1 : at;
  const Scanner::Char first = text.at(word);
  if (first.bytes > 0) {
    if ((first.classes & kLetter) != 0) return text.run(word, kLetter);
    if ((first.classes & kNumber) != 0) return text.run(word, kNumber);
    if ((first.classes & kSpace) == 0) return text.run_without(word, kNoSymbol);
  }
  return white_space(text, at);
}

/// The pattern of Llama 3, which groups up to `digits` digits; Qwen2's is the same with one digit.
size_t llama3_end(const Scanner& text, size_t at, size_t digits) {
  if (text.byte(at) == '\'')
    if (const size_t end = contraction(text, at, true); end > at) return end;
  const Scanner::Char first = text.at(at);
  if ((first.classes & kLetter) != 0) return text.run(at, kLetter);
  if ((first.classes & kNumber) != 0) return text.run(at, kNumber, digits);
  if ((first.classes & kLineEnd) == 0 && (text.at(at + first.bytes).classes & kLetter) != 0)
    return text.run(at + first.bytes, kLetter);
  const size_t symbols = text.byte(at) == ' ' ? at + 1 : at;
  if (const size_t end = text.run_without(symbols, kNoSymbol); end > symbols) return text.run(end, kLineEnd);
  size_t line_end = at, end = at;
  for (auto c = text.at(end); c.bytes > 0 && (c.classes & kSpace) != 0; c = text.at(end)) {
    end += c.bytes;
    if ((c.classes & kLineEnd) != 0) line_end = end;
  }
  return line_end > at ? line_end : white_space(text, at);
}

template <class End>
Cutter cut_at(End end_of) {
  return [end_of](std::string_view text, std::vector<Stretch>& to) {
    const Scanner scanner(text);
    for (size_t at = 0; at < text.size();) {
      const size_t end = end_of(scanner, at);
      to.push_back({at, end, true});
      at = end;
    }
  };
}

}  // namespace

std::optional<Cutter> find_known_pattern(std::string_view pattern) {
  if (pattern == kGpt2Pattern) return cut_at(gpt2_end);
  if (pattern != kLlama3Pattern && pattern != kQwen2Pattern) return {};
  const size_t digits = pattern == kLlama3Pattern ? 3 : 1;
  return cut_at([digits](const Scanner& text, size_t at) { return llama3_end(text, at, digits); });
}

}  // namespace trainctl
