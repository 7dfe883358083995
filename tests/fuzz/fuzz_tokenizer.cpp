// libFuzzer target: any bytes are a tokenizer.json followed by a text, or cause an EnvError. The tokens do not depend
// on the contents of the cache, each is in the vocabulary, and any list of tokens can be decoded.
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "engine/base/error.h"
#include "engine/text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trainctl;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t cut = std::min(input.find('\0'), input.size());  // json, a zero byte, text
  const std::string_view text = input.substr(std::min(cut + 1, input.size()));
  try {
    const auto tokenizer = parse_tokenizer(input.substr(0, cut), "fuzz");
    static WordCache empty;
    WordCache cache = empty;
    std::vector<int32_t> tokens, again;
    tokenizer->encode(text, true, cache, tokens);
    tokenizer->encode(text, true, cache, again);
    if (tokens != again) abort();
    (void)tokenizer->decode(tokens, false);
    std::vector<int32_t> any(size / sizeof(int32_t));
    std::memcpy(any.data(), data, any.size() * sizeof(int32_t));
    (void)tokenizer->decode(any, true);
  } catch (const EnvError&) {
  }
  return 0;
}
