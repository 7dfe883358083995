// Tests of the text of generated tokens, which is output token by token (engine/text/text_stream.h).
#include "engine/text/text_stream.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "engine/text/decoders.h"

namespace trainctl {
namespace {

/// A tokenizer whose token i is pieces[i]. "_" begins a word: it is a space, except at the beginning of a text, as in
/// SentencePiece models.
class Pieces : public Tokenizer {
 public:
  explicit Pieces(std::vector<std::string> pieces) : pieces_(std::move(pieces)) {}
  void encode(std::string_view, bool, WordCache&, std::vector<int32_t>&) const override {}
  std::string decode(std::span<const int32_t> tokens, bool) const override {
    std::string bytes;
    for (const int32_t token : tokens)
      for (const char c : pieces_[static_cast<size_t>(token)]) bytes += c == '_' ? ' ' : c;
    if (bytes.starts_with(' ')) bytes.erase(0, 1);
    return valid_utf8(bytes);
  }
  int64_t vocabulary_size() const override { return static_cast<int64_t>(pieces_.size()); }
  std::optional<int32_t> find(std::string_view) const override { return std::nullopt; }

 private:
  std::vector<std::string> pieces_;
};

/// The text that is output after each token, and at the end.
std::vector<std::string> streamed(const std::vector<std::string>& pieces, const std::vector<int32_t>& tokens,
                                  const std::vector<std::string>& stops = {}) {
  const Pieces tokenizer(pieces);
  TextStream stream(tokenizer, {0}, stops);
  std::vector<std::string> texts;
  for (const int32_t token : tokens) texts.push_back(stream.add(token));
  texts.push_back(stream.finish());
  return texts;
}

using Texts = std::vector<std::string>;

}  // namespace

TEST_CASE("a character of several tokens is output once it is complete") {
  CHECK(streamed({"a", "\xe2\x82", "\xac", "b"}, {1, 2, 3}) == Texts{"", "\xe2\x82\xac", "b", ""});
  CHECK(streamed({"a", "\xe2\x82"}, {1}) == Texts{"", "\xef\xbf\xbd"});
}

TEST_CASE("the space before the first generated word is output") {
  CHECK(streamed({"_the", "_sea", "_is"}, {1, 2}) == Texts{" sea", " is", ""});
}

TEST_CASE("a stop sequence ends the text, even across tokens, and a possible beginning of one is held back") {
  CHECK(streamed({"a", "x E", "N", "D y"}, {1, 2, 3}, {"END"}) == Texts{"x ", "", "", ""});
  CHECK(streamed({"a", "x E", "N", "O"}, {1, 2, 3}, {"END"}) == Texts{"x ", "", "ENO", ""});
  CHECK(streamed({"a", "E"}, {1}, {"END"}) == Texts{"", "E"});
  CHECK(streamed({"a", "one two"}, {1}, {"two", "one"}) == Texts{"", ""});
}

}  // namespace trainctl
