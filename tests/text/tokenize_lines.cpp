// tokenize_lines TOKENIZER: reads JSON texts, one per line, and writes {"ids", "plain", "text"} for each: the tokens
// with and without special tokens, and the tokens decoded. For tests that compare with other tokenizers.
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/text/tokenizer.h"

int main(int argc, char** argv) {
  using namespace trainctl;
  if (argc != 2) return 2;
  try {
    const auto tokenizer = open_tokenizer(argv[1]);
    WordCache cache;
    for (std::string line; std::getline(std::cin, line);) {
      const auto text = nlohmann::json::parse(line).get<std::string>();
      std::vector<int32_t> ids, plain;
      tokenizer->encode(text, true, cache, ids);
      tokenizer->encode(text, false, cache, plain);
      const nlohmann::json out = {{"ids", ids},
                                  {"plain", plain},
                                  {"text", tokenizer->decode(ids, false)},
                                  {"short", tokenizer->decode(ids, true)}};
      std::cout << out.dump() << "\n";
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 3;
  }
  return 0;
}
