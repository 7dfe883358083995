// A tokenizer: from text to tokens and back. tokenizer.json is read by our code, SentencePiece models by its library.
#include "engine/text/tokenizer.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "engine/base/error.h"
#include "engine/text/added_tokens.h"
#include "engine/text/decoders.h"
#include "engine/text/normalizers.h"
#include "engine/text/post_processor.h"
#include "engine/text/pre_tokenizers.h"
#include "engine/text/token_model.h"
#include "engine/text/unicode.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

const nlohmann::json kNull;

JsonPart part_of(const JsonPart& root, const std::string& key) {
  return root.has(key) ? root.at(key) : JsonPart(kNull, root.path() + "." + key);
}

/// The parts of a tokenizer.json, in the order in which a text passes through them.
class JsonTokenizer final : public Tokenizer {
 public:
  explicit JsonTokenizer(const JsonPart& root)
      : normalizer_(read_normalizer(part_of(root, "normalizer"))),
        pre_tokenizers_(read_pre_tokenizers(part_of(root, "pre_tokenizer"))),
        model_(read_model(root.at("model"))),
        around_(read_post_processor(part_of(root, "post_processor"))),
        decoder_(read_decoder(part_of(root, "decoder"))) {
    if (root.has("added_tokens")) added_ = AddedTokens(root.at("added_tokens"), *model_, normalizer_);
    if (pre_tokenizers_.ends_with_bytes && !model_->take_bytes())
      pre_tokenizers_.steps.emplace_back(write_bytes_as_characters);
  }

  void encode(std::string_view text, bool adds_special, WordCache& cache, std::vector<int32_t>& to) const override {
    if (const size_t at = find_invalid_utf8(text); at != std::string_view::npos)
      throw EnvError(fmt::format("byte {} is not UTF-8", at));
    if (adds_special) to.insert(to.end(), around_.before.begin(), around_.before.end());
    std::vector<AddedTokens::Part> parts;
    added_.find(text, false, parts);
    for (const auto& part : parts) {
      if (part.token >= 0)
        to.push_back(part.token);
      else
        encode_original(text.substr(part.begin, part.end - part.begin), part.begin == 0, cache, to);
    }
    if (adds_special) to.insert(to.end(), around_.after.begin(), around_.after.end());
  }

  std::string decode(std::span<const int32_t> tokens, bool skips_special) const override {
    std::vector<std::string> texts;
    for (const int32_t token : tokens) {
      const AddedToken* added = added_.by_id(token);
      const std::string* text = added != nullptr ? &added->content : model_->vocabulary().text(token);
      if (text != nullptr && !(skips_special && added != nullptr && added->special)) texts.push_back(*text);
    }
    if (decoder_) decoder_(texts);
    std::string result;
    for (size_t i = 0; i < texts.size(); ++i) result += (i > 0 && !decoder_ ? " " : "") + texts[i];
    return result;
  }

  int64_t vocabulary_size() const override {
    return int64_t{1} + std::max(model_->vocabulary().largest(), added_.largest());
  }

  std::optional<int32_t> find(std::string_view token) const override {
    const AddedToken* added = added_.by_text(token);
    return added != nullptr ? std::optional(added->id) : model_->vocabulary().find(token);
  }

 private:
  void encode_original(std::string_view text, bool is_first, WordCache& cache, std::vector<int32_t>& to) const {
    NormalizedText normalized;
    if (normalizer_) {
      normalized.text = text;
      normalizer_(normalized);
      text = normalized.text;
    }
    const size_t start = is_first ? normalized.start_bytes : 0;
    if (!added_.has_normalized()) return encode_normalized(text, start, cache, to);
    std::vector<AddedTokens::Part> parts;
    added_.find(text, true, parts);
    for (const auto& part : parts) {
      if (part.token >= 0)
        to.push_back(part.token);
      else
        encode_normalized(text.substr(part.begin, part.end - part.begin), part.begin == 0 ? start : 0, cache, to);
    }
  }

  /// Tokenizes a normalized text. `start_bytes`: as in NormalizedText; 0 for a text after an added token.
  void encode_normalized(std::string_view text, size_t start_bytes, WordCache& cache, std::vector<int32_t>& to) const {
    if (text.empty()) return;
    Pieces pieces;
    pieces.text = text;
    pieces.start_bytes = start_bytes;
    pieces.pieces.push_back({0, text.size(), start_bytes > 0});
    for (const PreTokenizer& step : pre_tokenizers_.steps) step(pieces);
    for (const TextPiece& piece : pieces.pieces) model_->tokenize(pieces.of(piece), cache, to);
  }

  Normalizer normalizer_;
  PreTokenizers pre_tokenizers_;
  std::unique_ptr<TokenModel> model_;
  TokensAround around_;
  Decoder decoder_;
  AddedTokens added_;
};

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  if (!in || !(text << in.rdbuf())) throw EnvError(path + ": cannot be read");
  return std::move(text).str();
}

nlohmann::json parse_json(std::string_view text, const std::string& file) {
  constexpr int kDeepest = 64;
  try {
    return nlohmann::json::parse(text, [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
      if (depth > kDeepest) throw EnvError(file + ": is nested more than 64 levels deep");
      return true;
    });
  } catch (const nlohmann::json::exception& error) {
    throw EnvError(file + ": is not valid JSON: " + error.what());
  }
}

}  // namespace

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool adds_special) const {
  WordCache cache;
  std::vector<int32_t> tokens;
  encode(text, adds_special, cache, tokens);
  return tokens;
}

std::unique_ptr<Tokenizer> parse_tokenizer(std::string_view json, const std::string& file) {
  const nlohmann::json root = parse_json(json, file);
  return std::make_unique<JsonTokenizer>(JsonPart(root, file));
}

std::string find_tokenizer_file(const std::string& path) {
  if (!fs::is_directory(path)) return path;
  constexpr const char* kNames[] = {"tokenizer.json", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model"};
  for (const char* name : kNames)
    if (const fs::path file = fs::path(path) / name; fs::exists(file)) return file.string();
  for (const char* old : {"vocab.json", "vocab.txt", "tiktoken.model", "tekken.json"})
    if (fs::exists(fs::path(path) / old))
      throw EnvError(
          path + ": has " + old +
          ", but no tokenizer.json, which transformers makes of it:\n  python3 -c 'import sys, transformers; "
          "transformers.AutoTokenizer.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[1])' FOLDER");
  throw EnvError(path +
                 ": has neither tokenizer.json nor tokenizer.model, spiece.model or sentencepiece.bpe.model; name "
                 "the file, or make one with `trainctl data train-tokenizer`");
}

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& path) {
  const std::string file = find_tokenizer_file(path);
  if (!fs::exists(file)) throw EnvError(file + ": does not exist");
  return file.ends_with(".model") ? open_sentencepiece(file) : parse_tokenizer(read_file(file), file);
}

}  // namespace trainctl
