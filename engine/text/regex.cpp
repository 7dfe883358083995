// Regular expressions of tokenizer.json, written for Oniguruma, run by PCRE2 on UTF-8. Patterns are rewritten where the
// two differ:
//   - U+180E is white space only for PCRE2.
//   - a{1,3}+ is possessive for PCRE2, whereas Oniguruma repeats it.
//   - \w, \b and [:alpha:] are other characters, and \h is a hexadecimal digit for Oniguruma.
//   - \p{Han} has the characters of the script for Oniguruma, and also those of its extensions for PCRE2.
//   - [a[bc]] is a union for Oniguruma.
#include "engine/text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <memory>
#include <utility>

#include "engine/base/error.h"

namespace trainctl {
namespace {

constexpr std::string_view kWhiteSpace =
    R"(\x09-\x0D\x20\x85\xA0\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";

constexpr std::string_view kWordClass = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})", kHexDigit = "0-9A-Fa-f";
/// Outside of brackets, \w also matches these superscripts and fractions of Latin 1.
constexpr std::string_view kWordOfLatin1 = R"(\xB2\xB3\xB9\xBC-\xBE)";

/// Classes in brackets, such as [:alpha:].
constexpr std::pair<std::string_view, std::string_view> kPosixClasses[] = {
    {"alnum", R"(\p{Alphabetic}\p{Nd})"}, {"alpha", R"(\p{Alphabetic})"}, {"digit", R"(\p{Nd})"},
    {"lower", R"(\p{Lowercase})"},        {"punct", R"(\p{P}\p{S})"},     {"space", kWhiteSpace},
    {"upper", R"(\p{Uppercase})"},        {"word", kWordClass},           {"xdigit", kHexDigit}};

bool is_script(std::string_view name) {
  const std::string pattern = "\\p{sc:" + std::string(name) + "}";
  int error = 0;
  PCRE2_SIZE at = 0;
  pcre2_code* const code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                         PCRE2_UTF | PCRE2_UCP, &error, &at, nullptr);
  pcre2_code_free(code);
  return code != nullptr;
}

/// Rewrites a pattern of Oniguruma for PCRE2.
class PatternRewriter {
 public:
  explicit PatternRewriter(std::string_view pattern) : in_(pattern) {}

  std::string rewrite() {
    while (at_ < in_.size()) take();
    return std::move(out_);
  }

 private:
  void take() {
    const char c = in_[at_];
    if (c == '\\' && at_ + 1 < in_.size()) return take_escape();
    if (c == '[' && depth_ > 0) return take_inner_bracket();
    if (depth_ > 0 && in_.substr(at_, 2) == "&&") throw EnvError("an intersection, [a&&b], is not supported");
    if (c == '[') {
      atom_ = out_.size();
      ++depth_;
    } else if (c == ']' && depth_ > 0) {
      if (--depth_ > 0) {  // the end of a union
        ++at_;
        return;
      }
    } else if (depth_ == 0 && c == '{' &&
               std::isdigit(static_cast<unsigned char>(in_[std::min(at_ + 1, in_.size() - 1)]))) {
      return take_interval();
    } else if (depth_ == 0) {
      atom_ = c == ')' ? std::string::npos : out_.size();
    }
    out_ += c;
    ++at_;
  }

  /// A class such as [:alpha:], or a union, whose brackets are left out.
  void take_inner_bracket() {
    if (in_.substr(at_, 2) != "[:") {
      if (in_.substr(at_, 2) == "[^") throw EnvError("a negation in brackets, [a[^b]], is not supported");
      ++depth_;
      ++at_;
      return;
    }
    const size_t close = in_.find(":]", at_);
    const std::string_view name = in_.substr(at_ + 2, close == std::string_view::npos ? 0 : close - at_ - 2);
    for (const auto& [known, characters] : kPosixClasses) {
      if (name != known) continue;
      out_ += characters;
      at_ = close + 2;
      return;
    }
    throw EnvError("the class [:" + std::string(name) + ":] is not supported");
  }

  /// Adds characters or, outside of brackets, a class of them.
  void add_class(std::string_view characters, bool is_negated) {
    if (depth_ > 0 && is_negated) throw EnvError("\\" + std::string(1, in_[at_ + 1]) + " in brackets is not supported");
    if (depth_ > 0)
      out_ += characters;
    else
      out_.append(is_negated ? "[^" : "[").append(characters).append("]");
  }

  void take_escape() {
    const char c = in_[at_ + 1];
    if (depth_ == 0) atom_ = out_.size();
    if (c == 's' || (c == 'S' && depth_ == 0)) {
      add_class(kWhiteSpace, c == 'S');
    } else if (c == 'w' || c == 'W') {
      add_class(depth_ > 0 ? std::string(kWordClass) : std::string(kWordClass).append(kWordOfLatin1), c == 'W');
    } else if (c == 'h' || c == 'H') {
      add_class(kHexDigit, c == 'H');
    } else if ((c == 'b' || c == 'B') && depth_ == 0) {
      const std::string word = "[" + std::string(kWordClass).append(kWordOfLatin1) + "]";
      const bool is_boundary = c == 'b';
      out_ += "(?:(?<=" + word + (is_boundary ? ")(?!" : ")(?=") + word + ")|(?<!" + word +
              (is_boundary ? ")(?=" : ")(?!") + word + "))";
    } else {
      const size_t close =
          (c == 'p' || c == 'P') && at_ + 2 < in_.size() && in_[at_ + 2] == '{' ? in_.find('}', at_) : 0;
      if (close != 0 && close != std::string_view::npos) {
        std::string name(in_.substr(at_ + 3, close - at_ - 3));
        const size_t first = name.starts_with('^') ? 1 : 0;
        if (is_script(std::string_view(name).substr(first))) name.insert(first, "sc:");
        out_.append(in_.substr(at_, 2)).append("{").append(name).append("}");
        at_ = close + 1;
        return;
      }
      out_ += in_.substr(at_, 2);
    }
    at_ += 2;
  }

  void take_interval() {
    const size_t close = in_.find('}', at_);
    if (close == std::string_view::npos) throw EnvError("'{' has no '}'");
    const std::string interval(in_.substr(at_, close + 1 - at_));
    at_ = close + 1;
    if (at_ < in_.size() && in_[at_] == '+') {
      if (atom_ == std::string::npos) throw EnvError("a group with " + interval + "+ is not supported");
      out_.insert(atom_, "(?:");
      out_ += interval + ")";
    } else {
      out_ += interval;
    }
  }

  std::string_view in_;
  std::string out_;
  size_t at_ = 0, atom_ = 0;  ///< atom_: where the last atom begins in out_
  int depth_ = 0;             ///< open brackets
};

pcre2_match_data* thread_match_data() {
  struct Free {
    void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  };
  thread_local const std::unique_ptr<pcre2_match_data, Free> data(pcre2_match_data_create(1, nullptr));
  return data.get();
}

}  // namespace

Regex::Regex(std::string_view pattern) {
  const std::string rewritten = PatternRewriter(pattern).rewrite();
  int error = 0;
  PCRE2_SIZE at = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(rewritten.data()), rewritten.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &at, nullptr);
  if (code == nullptr) {
    std::array<PCRE2_UCHAR, 256> message{};
    pcre2_get_error_message(error, message.data(), message.size());
    throw EnvError("the regular expression '" + std::string(pattern) +
                   "' is not supported: " + reinterpret_cast<const char*>(message.data()));
  }
  code_.reset(code, [](void* owned) { pcre2_code_free(static_cast<pcre2_code*>(owned)); });
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // without it the interpreter runs the pattern
}

bool Regex::find(std::string_view text, size_t from, Match& match) const {
  pcre2_match_data* data = thread_match_data();
  const int found = pcre2_match(static_cast<const pcre2_code*>(code_.get()), reinterpret_cast<PCRE2_SPTR>(text.data()),
                                text.size(), from, PCRE2_NO_UTF_CHECK, data, nullptr);
  if (found == PCRE2_ERROR_NOMATCH) return false;
  if (found < 0) throw EnvError("a regular expression of the tokenizer exceeds the limits of PCRE2 on this text");
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data);
  match = {range[0], range[1]};
  return true;
}

std::string escape_regex(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (std::string_view("\\^$.[]|()?*+{}-#&~ ").find(c) != std::string_view::npos) escaped += '\\';
    escaped += c;
  }
  return escaped;
}

}  // namespace trainctl
