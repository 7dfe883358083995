// The normalizer Precompiled. A chunk of text is looked up by its shortest prefix in the trie, as the crate
// spm_precompiled does.
#include "engine/text/charsmap.h"

#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "engine/text/unicode.h"

namespace trainctl {
namespace {

/// Decodes the base64 text of a part of tokenizer.json. Fails if the text is not base64.
std::string from_base64(const JsonPart& part) {
  std::string bytes;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : part.text()) {
    int value = -1;
    if (c >= 'A' && c <= 'Z') value = c - 'A';
    if (c >= 'a' && c <= 'z') value = c - 'a' + 26;
    if (c >= '0' && c <= '9') value = c - '0' + 52;
    if (c == '+') value = 62;
    if (c == '/') value = 63;
    if (c == '=') break;
    if (value < 0) part.fail("expected base64");
    bits = (bits << 6) | static_cast<uint32_t>(value);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes += static_cast<char>((bits >> count) & 0xFF);
  }
  return bytes;
}

class Charsmap {
 public:
  explicit Charsmap(const JsonPart& part) {
    const std::string bytes = from_base64(part);
    uint32_t trie_bytes = 0;
    if (bytes.size() < sizeof(trie_bytes)) part.fail("the table is truncated");
    std::memcpy(&trie_bytes, bytes.data(), sizeof(trie_bytes));
    if (trie_bytes > bytes.size() - sizeof(trie_bytes) || trie_bytes % sizeof(uint32_t) != 0 || trie_bytes == 0)
      part.fail("the table is damaged");
    trie_.resize(trie_bytes / sizeof(uint32_t));
    std::memcpy(trie_.data(), bytes.data() + sizeof(trie_bytes), trie_bytes);
    texts_ = bytes.substr(sizeof(trie_bytes) + trie_bytes);
  }

  void apply(NormalizedText& text) const {
    std::string result;
    size_t begin = 0, start_bytes = 0;
    for (const uint32_t end : grapheme_ends(text.text)) {
      constexpr size_t kLongest = 6;
      const std::string_view cluster = std::string_view(text.text).substr(begin, end - begin);
      const auto whole = cluster.size() < kLongest ? find(cluster) : std::nullopt;
      if (whole)
        result += *whole;
      else
        append_characters(cluster, result);
      if (begin < text.start_bytes) start_bytes = result.size();
      begin = end;
    }
    text.start_bytes = start_bytes;
    text.text = std::move(result);
  }

 private:
  void append_characters(std::string_view cluster, std::string& to) const {
    for (size_t at = 0; at < cluster.size();) {
      const std::string_view character = cluster.substr(at, code_point(cluster, at).bytes);
      to += find(character).value_or(character);
      at += character.size();
    }
  }

  /// The replacement of the shortest prefix of `key` that the trie has.
  std::optional<std::string_view> find(std::string_view key) const {
    size_t node = offset(trie_[0]);
    for (const char c : key) {
      const auto byte = static_cast<unsigned char>(c);
      node ^= byte;
      if (byte == 0 || node >= trie_.size()) return {};
      const uint32_t unit = trie_[node];
      if ((unit & (0x80000000U | 0xFF)) != byte) return {};
      node ^= offset(unit);
      if (((unit >> 8) & 1) != 0 && node < trie_.size()) return text_at(trie_[node] & 0x7FFFFFFF);
    }
    return {};
  }

  static size_t offset(uint32_t unit) { return static_cast<size_t>(unit >> 10) << ((unit & (1U << 9)) >> 6); }

  std::string_view text_at(size_t at) const {
    if (at >= texts_.size()) return {};
    const std::string_view rest = std::string_view(texts_).substr(at);
    return rest.substr(0, std::min(rest.find('\0'), rest.size()));
  }

  std::vector<uint32_t> trie_;
  std::string texts_;
};

}  // namespace

Normalizer read_charsmap(const JsonPart& part) {
  const auto map = std::make_shared<const Charsmap>(part.at("precompiled_charsmap"));
  return [map](NormalizedText& text) { map->apply(text); };
}

}  // namespace trainctl
