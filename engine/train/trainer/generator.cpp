// Generates the texts of a request on rank 0, and writes them as they are generated. The texts of a batch are rows. All
// tokens of the prompts but their last are read in chunks, in which shorter prompts are filled up; what a filling
// writes to the caches is overwritten before a token can attend to it.
//
//   prompts   chunk 0   chunk 1   decode
//   a b c d   a b       c -       d -> e, ..      2 tokens per chunk
//   p q       p -       - -       q -> r, ..
#include "engine/train/trainer/generator.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/model/index_uses.h"
#include "engine/ops/cpu/threads_cpu.h"
#include "engine/text/text_stream.h"

namespace trainctl {
namespace {

/// Tokens are the bytes of a text.
class ByteTokenizer : public Tokenizer {
 public:
  void encode(std::string_view text, bool, WordCache&, std::vector<int32_t>& to) const override {
    for (const char byte : text) to.push_back(static_cast<unsigned char>(byte));
  }
  std::string decode(std::span<const int32_t> tokens, bool) const override {
    std::string text;
    for (const int32_t token : tokens)
      if (token >= 0 && token < kBytes) text += static_cast<char>(token);
    return text;
  }
  int64_t vocabulary_size() const override { return kBytes; }
  std::optional<int32_t> find(std::string_view token) const override {
    return token.size() == 1 ? std::optional<int32_t>(static_cast<unsigned char>(token[0])) : std::nullopt;
  }

 private:
  static constexpr int32_t kBytes = 256;
};

/// One text, in a row of the batch.
class GeneratedText {
 public:
  GeneratedText(const GenerationRequest& request, size_t index, const Tokenizer& tokenizer)
      : request_(request),
        index_(index),
        tokens_(request.prompts[index].tokens),
        stream_(tokenizer, tokens_, request.stops) {}

  const std::vector<int32_t>& tokens() const { return tokens_; }
  int64_t prompt_size() const { return static_cast<int64_t>(request_.prompts[index_].tokens.size()); }
  bool is_done() const { return !reason_.empty(); }
  const std::string& prompt() const { return request_.prompts[index_].text; }
  const std::string& text() const { return text_; }

  int32_t choose(std::span<float> logits) const { return next_token(logits, tokens_, request_.sampling, index_); }

  /// Returns the new text.
  std::string take(int32_t token) {
    tokens_.push_back(token);
    const bool is_end = std::count(request_.end_tokens.begin(), request_.end_tokens.end(), token) > 0;
    std::string now = is_end ? "" : stream_.add(token);
    const auto size = static_cast<int64_t>(tokens_.size());
    if (is_end || stream_.stopped())
      reason_ = "stop";
    else if (size - prompt_size() >= request_.max_tokens || size >= request_.size.positions)
      reason_ = "length";
    if (is_done()) now += stream_.finish();
    text_ += now;
    return now;
  }

  std::string json() const {
    nlohmann::ordered_json json;
    json["prompt"] = request_.prompts[index_].text;
    json["text"] = text_;
    json["tokens"] = std::vector<int32_t>(tokens_.begin() + prompt_size(), tokens_.end());
    json["prompt_tokens"] = prompt_size();
    json["finish_reason"] = reason_;
    return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  }

 private:
  const GenerationRequest& request_;
  const size_t index_;
  std::vector<int32_t> tokens_;  // with the prompt
  TextStream stream_;
  std::string text_, reason_;
};

using Batch = std::vector<std::unique_ptr<GeneratedText>>;

/// Choosing among fewer logits is not worth a thread.
constexpr int64_t kLogitsOfThread = int64_t{1} << 16;

void prefill(const Batch& batch, TokenSteps& steps) {
  const int64_t chunk = steps.prefill_tokens();
  int64_t longest = 0;
  for (const auto& text : batch) longest = std::max(longest, text->prompt_size() - 1);
  for (int64_t first = 0; first < longest; first += chunk) {
    std::vector<int32_t> tokens(static_cast<size_t>(steps.rows() * chunk)), starts(static_cast<size_t>(steps.rows()));
    for (size_t row = 0; row < batch.size(); ++row) {
      const std::vector<int32_t>& all = batch[row]->tokens();
      const int64_t begin = std::min(first, batch[row]->prompt_size() - 1);
      const int64_t end = std::min(first + chunk, batch[row]->prompt_size() - 1);
      starts[row] = static_cast<int32_t>(begin);
      std::copy(all.begin() + begin, all.begin() + std::max(begin, end),
                tokens.begin() + static_cast<std::ptrdiff_t>(row) * chunk);
    }
    steps.prefill(tokens, starts);
  }
}

/// `on_text`: receives the new text of the batch's only row, or nothing.
void decode(const Batch& batch, TokenSteps& steps, const std::function<void(std::string_view)>& on_text) {
  const auto rows = static_cast<size_t>(steps.rows());
  const auto is_open = [](const auto& text) { return !text->is_done(); };
  std::vector<int32_t> tokens(rows), starts(rows);
  while (std::any_of(batch.begin(), batch.end(), is_open)) {
    for (size_t row = 0; row < batch.size(); ++row) {
      if (batch[row]->is_done()) continue;  // its row repeats the last token
      tokens[row] = batch[row]->tokens().back();
      starts[row] = static_cast<int32_t>(batch[row]->tokens().size()) - 1;
    }
    const std::span<float> logits = steps.decode(tokens, starts);
    const size_t vocabulary = logits.size() / rows;
    const int64_t least = kLogitsOfThread / static_cast<int64_t>(vocabulary);
    cpu::over_range(steps.threads(), static_cast<int64_t>(batch.size()), least, [&](int64_t begin, int64_t end) {
      for (auto row = static_cast<size_t>(begin); row < static_cast<size_t>(end); ++row)
        if (!batch[row]->is_done()) tokens[row] = batch[row]->choose(logits.subspan(row * vocabulary, vocabulary));
    });
    for (size_t row = 0; row < batch.size(); ++row)
      if (!batch[row]->is_done()) on_text(batch[row]->take(tokens[row]));
  }
}

/// `on_text` as in decode(); `on_end` receives each text when its batch is done.
template <class OnText, class OnEnd>
void generate_batches(const GenerationRequest& request, TokenSteps& steps, OnText on_text, OnEnd on_end) {
  const std::unique_ptr<Tokenizer> tokenizer =
      request.tokenizer.empty() ? std::make_unique<ByteTokenizer>() : open_tokenizer(request.tokenizer);
  const auto rows = static_cast<size_t>(steps.rows());
  for (size_t first = 0; first < request.prompts.size(); first += rows) {
    Batch batch;
    for (size_t p = first; p < std::min(first + rows, request.prompts.size()); ++p)
      batch.push_back(std::make_unique<GeneratedText>(request, p, *tokenizer));
    prefill(batch, steps);
    decode(batch, steps, on_text);
    for (const auto& text : batch) on_end(*text);
  }
}

}  // namespace

void require_known_tokens(const PlannedJob& job, const GenerationRequest& request) {
  int64_t below = std::numeric_limits<int32_t>::max();
  for (const IndexUse& use : index_uses(job.graph))
    if (use.input == tokens_input(job.spec)) below = std::min(below, use.below);
  for (const GenerationPrompt& prompt : request.prompts)
    for (const int32_t token : prompt.tokens)
      if (token < 0 || token >= below)
        throw EnvError(
            fmt::format("token {} of the prompt '{}' is not in the vocabulary of the network, which has {} "
                        "tokens; the tokenizer {} belongs to another model",
                        token, prompt.text, below, request.tokenizer));
}

void generate(const GenerationRequest& request, TokenSteps& steps, const std::function<void(std::string_view)>& write) {
  const bool streams = request.format == GenerationFormat::text;
  const auto on_text = [&](std::string_view text) {
    if (streams && !text.empty()) write(text);
  };
  generate_batches(request, steps, on_text, [&](const GeneratedText& text) {
    if (request.format == GenerationFormat::json) write(text.json());
    if (request.format == GenerationFormat::pairs) write("> " + text.prompt() + "\n" + text.text() + "\n\n");
  });
  if (streams) write("\n");
  steps.finish();
}

std::vector<ValidationText> generate_texts(const GenerationRequest& request, TokenSteps& steps) {
  std::vector<ValidationText> texts;
  generate_batches(
      request, steps, [](std::string_view) {},
      [&](const GeneratedText& text) {
        texts.push_back({text.prompt(), text.text()});
      });
  steps.finish();
  return texts;
}

}  // namespace trainctl
