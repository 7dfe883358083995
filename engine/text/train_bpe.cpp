// Trains byte-level BPE (Sennrich et al. 2016) as the package tokenizers does it.
#include "engine/text/train_bpe.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <queue>
#include <set>
#include <utility>

#include "engine/base/error.h"
#include "engine/text/byte_alphabet.h"
#include "engine/text/known_patterns.h"
#include "engine/text/unicode.h"

namespace trainctl {
namespace {

using Pair = std::pair<int32_t, int32_t>;

struct PairHash {
  size_t operator()(const Pair& pair) const {
    return std::hash<uint64_t>()(static_cast<uint64_t>(pair.first) << 32 | static_cast<uint32_t>(pair.second));
  }
};

struct CountedWord {
  std::vector<int32_t> tokens;
  int64_t count = 0;
};

/// The merges that words need, the most frequent first.
class MergeFinder {
 public:
  MergeFinder(std::vector<CountedWord> words, std::vector<std::string> tokens)
      : words_(std::move(words)), tokens_(std::move(tokens)) {
    for (size_t i = 0; i < tokens_.size(); ++i) ids_.emplace(tokens_[i], static_cast<int32_t>(i));
    for (size_t w = 0; w < words_.size(); ++w)
      for (size_t i = 0; i + 1 < words_[w].tokens.size(); ++i)
        change({words_[w].tokens[i], words_[w].tokens[i + 1]}, words_[w].count, w);
    push_changed();
  }

  void run(size_t size) {
    while (tokens_.size() < size && !queue_.empty()) {
      const Candidate best = queue_.top();
      queue_.pop();
      const int64_t count = counts_[best.pair];
      if (count != best.count) {
        if (count > 0) queue_.push({count, best.pair});
        continue;
      }
      merge(best.pair);
    }
  }

  const std::vector<std::string>& tokens() const { return tokens_; }
  const std::vector<Pair>& merges() const { return merges_; }

 private:
  struct Candidate {
    int64_t count;
    Pair pair;
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };

  void change(const Pair& pair, int64_t by, size_t word) {
    counts_[pair] += by;
    if (by < 0) return;
    places_[pair].push_back(word);
    changed_.insert(pair);
  }

  void push_changed() {
    for (const Pair& pair : changed_)
      if (counts_[pair] > 0) queue_.push({counts_[pair], pair});
    changed_.clear();
  }

  void merge(const Pair& pair) {
    const std::string text = tokens_[static_cast<size_t>(pair.first)] + tokens_[static_cast<size_t>(pair.second)];
    const auto [known, is_new] = ids_.emplace(text, static_cast<int32_t>(tokens_.size()));
    if (is_new) tokens_.push_back(text);
    merges_.push_back(pair);
    std::vector<size_t> places = std::exchange(places_[pair], {});
    std::sort(places.begin(), places.end());
    places.erase(std::unique(places.begin(), places.end()), places.end());
    for (const size_t word : places) merge_in(word, pair, known->second);
    counts_[pair] = 0;
    push_changed();
  }

  void merge_in(size_t number, const Pair& pair, int32_t token) {
    CountedWord& word = words_[number];
    std::vector<int32_t>& t = word.tokens;
    for (size_t i = 0; i + 1 < t.size(); ++i) {
      if (t[i] != pair.first || t[i + 1] != pair.second) continue;
      if (i > 0) {
        change({t[i - 1], t[i]}, -word.count, number);
        change({t[i - 1], token}, word.count, number);
      }
      if (i + 2 < t.size()) {
        change({t[i + 1], t[i + 2]}, -word.count, number);
        change({token, t[i + 2]}, word.count, number);
      }
      t[i] = token;
      t.erase(t.begin() + static_cast<ptrdiff_t>(i) + 1);
    }
  }

  std::vector<CountedWord> words_;
  std::vector<std::string> tokens_;
  std::unordered_map<std::string, int32_t> ids_;
  std::unordered_map<Pair, int64_t, PairHash> counts_;
  std::unordered_map<Pair, std::vector<size_t>, PairHash> places_;
  std::set<Pair> changed_;
  std::priority_queue<Candidate> queue_;
  std::vector<Pair> merges_;
};

std::string_view pattern_text(std::string_view name) {
  if (name == "gpt2") return kGpt2Pattern;
  if (name == "llama3") return kLlama3Pattern;
  check(name == "qwen2", "a pattern is gpt2, llama3 or qwen2");
  return kQwen2Pattern;
}

nlohmann::ordered_json pre_tokenizer_json(const std::string& pattern) {
  nlohmann::ordered_json bytes = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", pattern == "gpt2"}};
  if (pattern == "gpt2") return bytes;
  const nlohmann::ordered_json split = {
      {"type", "Split"}, {"pattern", {{"Regex", pattern_text(pattern)}}}, {"behavior", "Isolated"}, {"invert", false}};
  nlohmann::ordered_json steps = nlohmann::ordered_json::array({split, bytes});
  return {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}};
}

/// The vocabulary and the merges that were found, as the model of a tokenizer.json.
nlohmann::ordered_json model_json(const MergeFinder& finder) {
  nlohmann::ordered_json vocabulary = nlohmann::ordered_json::object(), merges = nlohmann::ordered_json::array();
  std::vector<std::pair<std::string, nlohmann::ordered_json>> entries;
  for (size_t i = 0; i < finder.tokens().size(); ++i) entries.emplace_back(finder.tokens()[i], i);
  // ordered_json looks for each key; its base is a list of pairs that are known to differ.
  auto& list = vocabulary.get_ref<nlohmann::ordered_json::object_t&>();
  for (auto& [text, id] : entries) list.emplace_back(std::move(text), std::move(id));
  for (const Pair& pair : finder.merges())
    merges.push_back(
        {finder.tokens()[static_cast<size_t>(pair.first)], finder.tokens()[static_cast<size_t>(pair.second)]});
  nlohmann::ordered_json model = {{"type", "BPE"},
                                  {"dropout", nullptr},
                                  {"unk_token", nullptr},
                                  {"continuing_subword_prefix", nullptr},
                                  {"end_of_word_suffix", nullptr},
                                  {"fuse_unk", false},
                                  {"byte_fallback", false},
                                  {"ignore_merges", false}};
  model["vocab"] = std::move(vocabulary);
  model["merges"] = std::move(merges);
  return model;
}

/// The special tokens, which have the first ids.
nlohmann::ordered_json added_tokens_json(const std::vector<std::string>& special) {
  nlohmann::ordered_json added = nlohmann::ordered_json::array();
  for (size_t i = 0; i < special.size(); ++i)
    added.push_back({{"id", i},
                     {"content", special[i]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  return added;
}

/// The whole tokenizer.json, as the library `tokenizers` writes it.
nlohmann::ordered_json tokenizer_json(const MergeFinder& finder, const std::vector<std::string>& special,
                                      const std::string& pattern) {
  const nlohmann::ordered_json bytes = {
      {"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}};
  nlohmann::ordered_json root = {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}};
  root["added_tokens"] = added_tokens_json(special);
  root["normalizer"] = nullptr;
  root["pre_tokenizer"] = pre_tokenizer_json(pattern);
  root["post_processor"] = nullptr;
  root["decoder"] = bytes;
  root["model"] = model_json(finder);
  return root;
}

}  // namespace

BpeTraining::BpeTraining(std::string_view pattern, std::vector<std::string> special)
    : pattern_(pattern), special_(std::move(special)) {}

void BpeTraining::add(std::string_view document) {
  if (const size_t at = find_invalid_utf8(document); at != std::string_view::npos)
    throw EnvError("byte " + std::to_string(at) + " is not UTF-8");
  std::vector<Stretch> stretches;
  (*find_known_pattern(pattern_text(pattern_)))(document, stretches);
  for (const Stretch& s : stretches) ++words_[std::string(document.substr(s.begin, s.end - s.begin))];
}

std::string BpeTraining::train(int64_t size) const {
  std::vector<std::string> tokens = special_, alphabet(byte_characters().begin(), byte_characters().end());
  std::sort(alphabet.begin(), alphabet.end());
  std::array<int32_t, 256> of_byte{};
  for (size_t byte = 0; byte < 256; ++byte)
    of_byte[byte] =
        static_cast<int32_t>(special_.size() + static_cast<size_t>(std::lower_bound(alphabet.begin(), alphabet.end(),
                                                                                    byte_characters()[byte]) -
                                                                   alphabet.begin()));
  tokens.insert(tokens.end(), alphabet.begin(), alphabet.end());
  std::vector<CountedWord> words;
  for (const auto& [text, count] : words_) {
    CountedWord& word = words.emplace_back();
    word.count = count;
    for (const char c : text) word.tokens.push_back(of_byte[static_cast<unsigned char>(c)]);
  }
  MergeFinder finder(std::move(words), std::move(tokens));
  finder.run(static_cast<size_t>(size));

  return tokenizer_json(finder, special_, pattern_).dump(2) + "\n";
}

}  // namespace trainctl
