// Text files to a file of tokens, on several threads. A batch of documents is read, then threads tokenize them, then
// the tokens are written in order.
#include "engine/train/data/tokenize_files.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <optional>
#include <thread>
#include <utility>

#include "engine/base/error.h"
#include "engine/text/tokenizer.h"
#include "engine/train/data/token_writer.h"

namespace trainctl {
namespace {

constexpr size_t kBatchBytes = size_t{8} << 20;

/// Tokenizes documents with one cache per thread.
class DocumentEncoder {
 public:
  DocumentEncoder(const Tokenizer& tokenizer, const TokenizeOptions& options)
      : tokenizer_(tokenizer), options_(options), caches_(static_cast<size_t>(std::max(options.threads, 1))) {
    if (options.end_token.empty()) return;
    end_ = tokenizer.find(options.end_token);
    if (!end_) throw EnvError("the tokenizer " + options.tokenizer + " has no token '" + options.end_token + "'");
  }

  std::vector<std::vector<int32_t>> encode(std::vector<RawDocument>& documents) {
    std::vector<std::vector<int32_t>> results(documents.size());
    std::vector<std::exception_ptr> errors(documents.size());
    std::atomic<size_t> next = 0;
    const auto work = [&](WordCache& cache) {
      for (size_t i = next++; i < documents.size(); i = next++) {
        try {
          encode_one(std::move(documents[i]), cache, results[i]);
        } catch (...) {
          errors[i] = std::current_exception();
        }
      }
    };
    {
      std::vector<std::jthread> threads;
      for (size_t t = 1; t < caches_.size(); ++t) threads.emplace_back([&, t] { work(caches_[t]); });
      work(caches_[0]);
    }
    for (const std::exception_ptr& error : errors)
      if (error) std::rethrow_exception(error);
    return results;
  }

 private:
  void encode_one(RawDocument&& document, WordCache& cache, std::vector<int32_t>& to) const {
    const std::string where = document.where;
    try {
      const std::string text = text_of(std::move(document), options_.documents.field, "--field");
      to.reserve(text.size() / 3);
      tokenizer_.encode(text, options_.adds_special, cache, to);
    } catch (const EnvError& error) {
      throw EnvError(where + ": " + error.what());
    }
    if (end_) to.push_back(*end_);
  }

  const Tokenizer& tokenizer_;
  const TokenizeOptions& options_;
  std::vector<WordCache> caches_;
  std::optional<int32_t> end_;
};

}  // namespace

TokenizeResult tokenize_files(const TokenizeOptions& options) {
  const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(options.tokenizer);
  TokenizeResult result;
  result.type = tokenizer->vocabulary_size() <= (1 << 16) ? TokenType::u16 : TokenType::i32;
  DocumentEncoder encoder(*tokenizer, options);
  DocumentReader reader(options.documents);
  TokenWriter writer(options.output, result.type, options.header, options.replace);
  for (auto documents = reader.read(kBatchBytes); !documents.empty(); documents = reader.read(kBatchBytes)) {
    result.documents += static_cast<int64_t>(documents.size());
    for (const RawDocument& document : documents) result.bytes += static_cast<int64_t>(document.text.size());
    for (const auto& tokens : encoder.encode(documents)) writer.write_tokens(tokens);
  }
  if (writer.count() == 0) throw EnvError("the input is empty; " + options.output + " was not written");
  result.tokens = writer.count();
  writer.finish();
  return result;
}

}  // namespace trainctl
