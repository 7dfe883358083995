// The tokens of words that a thread has seen: a table of fixed size in which a word replaces another one of the same
// place.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace trainctl {

class WordCache {
 public:
  WordCache() : entries_(kEntries) {}

  /// The tokens of `word`; null if they are not known.
  struct Entry {
    uint8_t length = 0, count = 0;
    char text[30];
    int32_t ids[8];
  };
  const Entry* find(std::string_view word) const {
    if (word.size() > sizeof(Entry::text)) return nullptr;
    const Entry& entry = entries_[place(word)];
    return entry.length == word.size() && std::memcmp(entry.text, word.data(), word.size()) == 0 ? &entry : nullptr;
  }
  void add(std::string_view word, std::span<const int32_t> ids) {
    if (word.empty() || word.size() > sizeof(Entry::text) || ids.size() > std::size(entries_[0].ids)) return;
    Entry& entry = entries_[place(word)];
    entry.length = static_cast<uint8_t>(word.size());
    entry.count = static_cast<uint8_t>(ids.size());
    std::copy(word.begin(), word.end(), entry.text);
    std::copy(ids.begin(), ids.end(), entry.ids);  // a word of removed characters has no ids
  }

 private:
  static constexpr size_t kEntries = size_t{1} << 15;

  static size_t place(std::string_view word) {
    uint64_t hash = word.size(), part = 0;
    for (; word.size() > sizeof(part); word.remove_prefix(sizeof(part))) {
      std::memcpy(&part, word.data(), sizeof(part));
      hash = (hash ^ part) * kFactor;
      hash ^= hash >> 32;
    }
    part = 0;
    std::memcpy(&part, word.data(), word.size());
    hash = (hash ^ part) * kFactor;
    return static_cast<size_t>(hash >> 49);
  }
  static constexpr uint64_t kFactor = 0x9E3779B97F4A7C15ULL;

  std::vector<Entry> entries_;
};

}  // namespace trainctl
