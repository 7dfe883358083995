// Tokens that are found in a text before it is tokenized, such as <|im_start|>.
#include "engine/text/added_tokens.h"

#include <algorithm>
#include <utility>

#include "engine/text/unicode.h"

namespace trainctl {
namespace {

/// The offset of the character that ends at `end`.
size_t previous_character(std::string_view text, size_t end) {
  size_t at = end - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

bool is_word(std::string_view text, size_t at) { return is_char(code_point(text, at).value, char_class::kWord); }
bool is_space_at(std::string_view text, size_t at) { return is_char(code_point(text, at).value, char_class::kSpace); }

bool touches_words(std::string_view text, size_t begin, size_t end) {
  return (begin > 0 && is_word(text, previous_character(text, begin))) || (end < text.size() && is_word(text, end));
}

}  // namespace

AddedTokens::AddedTokens(const JsonPart& list, const TokenModel& model, const Normalizer& normalizer) {
  for (const JsonPart& part : list.elements()) {
    AddedToken token;
    token.content = part.at("content").text();
    token.single_word = part.boolean("single_word", false);
    token.left_strip = part.boolean("lstrip", false);
    token.right_strip = part.boolean("rstrip", false);
    token.special = part.boolean("special", false);
    token.normalized = part.boolean("normalized", !token.special);
    if (!token.content.empty()) add(std::move(token), model);
  }
  for (const auto& [id, token] : by_id_) {
    TokenSet& set = sets_[token.normalized ? 1 : 0];
    NormalizedText content{token.content};
    if (token.normalized && normalizer) normalizer(content);
    if (content.text.empty()) continue;
    set.first_bytes[static_cast<unsigned char>(content.text[0])] = true;
    set.trie.add(content.text, static_cast<int32_t>(set.patterns.size()));
    set.patterns.push_back(&token);
  }
}

/// Adds a token. If the model has the token, it keeps its number; otherwise it gets a number after those of the model.
void AddedTokens::add(AddedToken token, const TokenModel& model) {
  const auto known = by_text_.find(token.content);
  const auto in_model = model.vocabulary().find(token.content);
  if (known != by_text_.end())
    token.id = known->second;
  else if (in_model)
    token.id = *in_model;
  else
    token.id = static_cast<int32_t>(std::max<int64_t>(largest_given_ + 1, model.vocabulary().size()));
  if (known == by_text_.end()) largest_given_ = std::max<int64_t>(largest_given_, token.id);
  by_text_[token.content] = token.id;
  by_id_[token.id] = std::move(token);
}

void AddedTokens::find(std::string_view text, bool normalized, std::vector<Part>& to) const {
  const TokenSet& set = sets_[normalized ? 1 : 0];
  size_t begin = 0;
  for (size_t at = 0; at < text.size() && !set.patterns.empty();) {
    if (!set.first_bytes[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    size_t length = 0;
    int32_t longest = -1;
    set.trie.prefixes(text.substr(at), [&](size_t bytes, int32_t number) {
      length = bytes;
      longest = number;
    });
    if (longest < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = *set.patterns[static_cast<size_t>(longest)];
    size_t start = at, stop = at + length;
    at = stop;
    if (token.single_word && touches_words(text, start, stop)) continue;
    if (token.left_strip)
      while (start > begin && is_space_at(text, previous_character(text, start)))
        start = previous_character(text, start);
    if (token.right_strip)
      while (stop < text.size() && is_space_at(text, stop)) stop += code_point(text, stop).bytes;
    if (begin < start) to.push_back({begin, start, -1});
    to.push_back({start, stop, token.id});
    begin = stop;  // tokens inside white space that this one strips are still found, as in the package `tokenizers`
  }
  if (begin < text.size()) to.push_back({begin, text.size(), -1});
}

const AddedToken* AddedTokens::by_id(int32_t id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &found->second;
}

const AddedToken* AddedTokens::by_text(std::string_view text) const {
  const auto found = by_text_.find(text);
  return found == by_text_.end() ? nullptr : by_id(found->second);
}

}  // namespace trainctl
