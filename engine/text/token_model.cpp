// The model of a tokenizer: from the pieces of a text to the numbers of tokens. The models by words are here:
// WordPiece, and WordLevel, whose vocabulary has whole words.
#include "engine/text/token_model.h"

#include <fmt/format.h>

#include <map>

#include "engine/base/error.h"
#include "engine/text/unicode.h"

namespace trainctl {
namespace {

constexpr int32_t kLargestToken = 1 << 21;

class WordPiece final : public TokenModel {
 public:
  explicit WordPiece(const JsonPart& part)
      : TokenModel(read_vocabulary(part.at("vocab"))),
        prefix_(part.text("continuing_subword_prefix", "##")),
        longest_(part.has("max_input_chars_per_word") ? part.at("max_input_chars_per_word").integer() : 100) {
    const std::string unknown = part.text("unk_token", "[UNK]");
    const auto id = vocabulary_.find(unknown);
    if (!id) part.fail("unk_token '" + unknown + "' is not in the vocabulary");
    unknown_ = *id;
    for (const auto& [text, number] : vocabulary_.ids()) most_bytes_ = std::max(most_bytes_, text.size());
  }

  void tokenize(std::string_view piece, WordCache& cache, std::vector<int32_t>& to) const override {
    if (const auto* known = cache.find(piece)) {
      to.insert(to.end(), known->ids, known->ids + known->count);
      return;
    }
    const size_t before = to.size();
    if (!append_parts(piece, to)) {
      to.resize(before);
      to.push_back(unknown_);
    }
    cache.add(piece, std::span(to).subspan(before));
  }

 private:
  /// Appends the tokens of a word, always the longest one that the rest of the word begins with. Returns false if some
  /// rest begins with no token, or the word is too long; some tokens may then have been appended.
  bool append_parts(std::string_view word, std::vector<int32_t>& to) const {
    if (static_cast<int64_t>(to_utf32(word).size()) > longest_) return false;
    std::string part;
    for (size_t begin = 0; begin < word.size();) {
      part = begin > 0 ? prefix_ : std::string();
      const size_t prefix = part.size();
      part += word.substr(begin, most_bytes_);
      std::optional<int32_t> id;
      while (part.size() > prefix && !(id = vocabulary_.find(part))) part.pop_back();
      if (!id) return false;
      begin += part.size() - prefix;
      to.push_back(*id);
    }
    return true;
  }

  std::string prefix_;
  int64_t longest_;
  int32_t unknown_ = 0;
  size_t most_bytes_ = 0;
};

class WordLevel final : public TokenModel {
 public:
  explicit WordLevel(const JsonPart& part)
      : TokenModel(read_vocabulary(part.at("vocab"))), unknown_(vocabulary_.find(part.text("unk_token", "<unk>"))) {}

  void tokenize(std::string_view piece, WordCache&, std::vector<int32_t>& to) const override {
    const auto id = vocabulary_.find(piece);
    if (!id && !unknown_)
      throw EnvError(fmt::format("the tokenizer has no token for '{}', and no unk_token in its vocabulary", piece));
    to.push_back(id ? *id : *unknown_);
  }

 private:
  std::optional<int32_t> unknown_;
};

}  // namespace

void Vocabulary::add(const std::string& text, int32_t id) {
  ids_[text] = id;
  if (static_cast<size_t>(id) >= texts_.size()) texts_.resize(static_cast<size_t>(id) + 1);
  texts_[static_cast<size_t>(id)] = text;
}

std::optional<int32_t> Vocabulary::find(std::string_view text) const {
  const auto found = ids_.find(text);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

const std::string* Vocabulary::text(int32_t id) const {
  if (id < 0 || static_cast<size_t>(id) >= texts_.size()) return nullptr;
  const auto& text = texts_[static_cast<size_t>(id)];
  return text ? &*text : nullptr;
}

Vocabulary read_vocabulary(const JsonPart& part) {
  if (!part.value().is_object()) part.fail("expected an object of tokens and their numbers");
  Vocabulary vocabulary;
  for (const auto& [text, id] : part.value().items()) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= kLargestToken)
      part.fail(fmt::format("the number of '{}' is not from 0 to {}", text, kLargestToken - 1));
    vocabulary.add(text, id.get<int32_t>());
  }
  return vocabulary;
}

ByteTokens find_byte_tokens(const Vocabulary& vocabulary) {
  ByteTokens tokens;
  for (size_t byte = 0; byte < tokens.size(); ++byte) tokens[byte] = vocabulary.find(fmt::format("<0x{:02X}>", byte));
  return tokens;
}

std::unique_ptr<TokenModel> read_word_piece(const JsonPart& part) { return std::make_unique<WordPiece>(part); }
std::unique_ptr<TokenModel> read_word_level(const JsonPart& part) { return std::make_unique<WordLevel>(part); }

std::unique_ptr<TokenModel> read_model(const JsonPart& part) {
  using Reader = std::unique_ptr<TokenModel> (*)(const JsonPart&);
  static const std::map<std::string, Reader> kReaders = {
      {"BPE", read_bpe}, {"Unigram", read_unigram}, {"WordLevel", read_word_level}, {"WordPiece", read_word_piece}};
  // Old files omit the type.
  const std::string type = part.text("type", part.has("merges") ? "BPE" : "");
  const auto found = kReaders.find(type);
  if (found == kReaders.end())
    part.fail("the model '" + type + "' is not supported; supported are BPE, Unigram, WordLevel and WordPiece");
  return found->second(part);
}

}  // namespace trainctl
