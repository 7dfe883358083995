// Regular expressions of tokenizer.json, written for Oniguruma, run by PCRE2 on UTF-8.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace trainctl {

class Regex {
 public:
  struct Match {
    size_t begin = 0, end = 0;
  };
  /// Throws EnvError if the pattern is not valid, or means something else in Oniguruma.
  explicit Regex(std::string_view pattern);
  /// The first match that begins at `from` or later. `text` is UTF-8. Threads may share a Regex.
  bool find(std::string_view text, size_t from, Match& match) const;

 private:
  std::shared_ptr<void> code_;
};

/// A pattern that matches `text` itself.
std::string escape_regex(std::string_view text);

}  // namespace trainctl
