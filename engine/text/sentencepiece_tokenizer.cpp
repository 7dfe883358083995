// SentencePiece models, read by libsentencepiece. tokenizer_config.json in the model's folder states which tokens
// surround a text.
#include <sentencepiece_processor.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/text/tokenizer.h"
#include "engine/text/unicode.h"

namespace trainctl {
namespace {

class SentencePieceTokenizer final : public Tokenizer {
 public:
  explicit SentencePieceTokenizer(const std::string& file) {
    if (const auto status = processor_.Load(file); !status.ok())
      throw EnvError(file + ": is not a SentencePiece model: " + status.ToString());
    std::ifstream in(std::filesystem::path(file).parent_path() / "tokenizer_config.json");
    const auto config = nlohmann::json::parse(in, nullptr, false);
    const auto adds = [&](const char* key) {
      return config.is_object() && config.value(key, nlohmann::json()) == true;
    };
    adds_begin_ = adds("add_bos_token") && processor_.bos_id() >= 0;
    adds_end_ = adds("add_eos_token") && processor_.eos_id() >= 0;
  }

  void encode(std::string_view text, bool adds_special, WordCache&, std::vector<int32_t>& to) const override {
    if (const size_t at = find_invalid_utf8(text); at != std::string_view::npos)
      throw EnvError("byte " + std::to_string(at) + " is not UTF-8");
    std::vector<int> tokens;
    if (const auto status = processor_.Encode({text.data(), text.size()}, &tokens); !status.ok())
      throw EnvError("SentencePiece: " + status.ToString());
    if (adds_special && adds_begin_) to.push_back(processor_.bos_id());
    to.insert(to.end(), tokens.begin(), tokens.end());
    if (adds_special && adds_end_) to.push_back(processor_.eos_id());
  }

  std::string decode(std::span<const int32_t> tokens, bool skips_special) const override {
    std::vector<int> known;
    for (const int32_t token : tokens) {
      if (token < 0 || token >= processor_.GetPieceSize()) continue;
      if (!skips_special || !processor_.IsControl(token)) known.push_back(token);
    }
    std::string text;
    if (const auto status = processor_.Decode(known, &text); !status.ok())
      throw EnvError("SentencePiece: " + status.ToString());
    return text;
  }

  int64_t vocabulary_size() const override { return processor_.GetPieceSize(); }

  std::optional<int32_t> find(std::string_view token) const override {
    const int id = processor_.PieceToId({token.data(), token.size()});
    return processor_.IdToPiece(id) == token ? std::optional<int32_t>(id) : std::nullopt;
  }

 private:
  sentencepiece::SentencePieceProcessor processor_;
  bool adds_begin_ = false, adds_end_ = false;
};

}  // namespace

std::unique_ptr<Tokenizer> open_sentencepiece(const std::string& file) {
  return std::make_unique<SentencePieceTokenizer>(file);
}

}  // namespace trainctl
