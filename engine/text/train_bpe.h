// Training of byte-level BPE (Sennrich et al. 2016) as the package tokenizers does it: the most frequent pair is
// merged; among equally frequent pairs, the one with the smaller tokens.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace trainctl {

class BpeTraining {
 public:
  /// `pattern`: gpt2, llama3 or qwen2, which decides how text is cut into words. `special`: tokens 0, 1, ….
  BpeTraining(std::string_view pattern, std::vector<std::string> special);
  /// Counts the words of a document, which is UTF-8; throws EnvError if it is not.
  void add(std::string_view document);
  /// The tokenizer.json of a vocabulary of at most `size` tokens, fewer if the text has no more pairs.
  std::string train(int64_t size) const;

 private:
  std::string pattern_;
  std::vector<std::string> special_;
  std::unordered_map<std::string, int64_t> words_;
};

}  // namespace trainctl
