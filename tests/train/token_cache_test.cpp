// Tests of the cache of tokens that the processes of a host share.
#include "engine/train/data/token_cache.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/error.h"
#include "engine/train/files/digest.h"
#include "tests/train/scratch_folder.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

/// Makes the cache use an empty folder as long as this object exists.
class OwnCacheFolder {
 public:
  explicit OwnCacheFolder(const std::string& path) {
    const char* before = std::getenv("XDG_CACHE_HOME");
    if (before != nullptr) before_ = before;
    ::setenv("XDG_CACHE_HOME", path.c_str(), 1);
  }
  ~OwnCacheFolder() { ::setenv("XDG_CACHE_HOME", before_.c_str(), 1); }
  OwnCacheFolder(const OwnCacheFolder&) = delete;
  OwnCacheFolder& operator=(const OwnCacheFolder&) = delete;

 private:
  std::string before_;
};

const std::string kSomeKey = digest_of("some key");
constexpr int64_t kCachedDocuments = 9000;  // more than one batch

/// Document d has d % 7 tokens; every third token is trained.
MarkedTokens made_tokens(int64_t document) {
  MarkedTokens tokens;
  for (int64_t i = 0; i < document % 7; ++i) {
    tokens.tokens.push_back(static_cast<int32_t>(document * 10 + i));
    tokens.marked.push_back(i % 3 == 0);
  }
  return tokens;
}

TokenCache made_cache(const std::string& key = kSomeKey) {
  return TokenCache(key, kCachedDocuments, [](int64_t d, WordCache&) { return made_tokens(d); });
}

bool has_made_tokens(const TokenCache& cache) {
  if (cache.size() != kCachedDocuments) return false;
  for (int64_t d = 0; d < cache.size(); ++d) {
    const MarkedTokens expected = made_tokens(d);
    const DocumentTokens found = cache.document(d);
    if (found.size() != static_cast<int64_t>(expected.tokens.size())) return false;
    for (int64_t i = 0; i < found.size(); ++i)
      if (found.token(i) != expected.tokens[static_cast<size_t>(i)] ||
          found.is_trained(i) != expected.marked[static_cast<size_t>(i)])
        return false;
  }
  return true;
}

std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> names;
  if (!fs::exists(folder)) return names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  return names;
}

}  // namespace

TEST_CASE("of the readers that start at the same time one tokenizes, and later ones read its file") {
  const ScratchFolder folder;
  const OwnCacheFolder own(folder.path());
  std::atomic<int> made = 0, right = 0, calls = 0;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 8; ++t)
      threads.emplace_back([&] {
        const TokenCache cache(kSomeKey, kCachedDocuments, [&](int64_t d, WordCache&) {
          ++calls;
          return made_tokens(d);
        });
        made += cache.was_made() ? 1 : 0;
        right += has_made_tokens(cache) ? 1 : 0;
      });
  }
  CHECK(made == 1);
  CHECK(calls == kCachedDocuments);
  CHECK(right == 8);
  const TokenCache later = made_cache();
  CHECK_FALSE(later.was_made());
  CHECK(later.memory_bytes() == 0);
  CHECK(has_made_tokens(later));
  CHECK(files_in(token_cache_folder()) == std::vector<std::string>{kSomeKey});
}

TEST_CASE("a file of tokens that is damaged, shortened or of another key is made again") {
  const ScratchFolder folder;
  const OwnCacheFolder own(folder.path());
  CHECK(made_cache().was_made());
  const std::string path = token_cache_folder() + "/" + kSomeKey;
  const auto bytes = static_cast<int64_t>(fs::file_size(path));
  for (const int64_t at : {int64_t{0}, int64_t{20}, int64_t{50}, int64_t{82}, int64_t{92}, bytes / 2, bytes - 3}) {
    CAPTURE(at);
    {
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(at);
      const auto old = static_cast<char>(file.get());
      file.seekp(at);
      file.put(static_cast<char>(old ^ 1));
    }
    const TokenCache again = made_cache();
    CHECK(again.was_made());
    CHECK(has_made_tokens(again));
  }
  for (const int64_t size : {int64_t{0}, int64_t{40}, bytes - 8}) {
    CAPTURE(size);
    fs::resize_file(path, static_cast<uintmax_t>(size));
    CHECK(made_cache().was_made());
  }
  const std::string other = digest_of("another key");
  fs::rename(path, token_cache_folder() + "/" + other);
  CHECK(made_cache(other).was_made());
  CHECK_FALSE(made_cache(other).was_made());
}

TEST_CASE("what a process that died has left behind does not stop others from tokenizing") {
  const ScratchFolder folder;
  const OwnCacheFolder own(folder.path());
  fs::create_directories(token_cache_folder());
  std::ofstream(token_cache_folder() + "/" + kSomeKey + ".part") << "half of a file";
  CHECK(made_cache().was_made());
  CHECK(files_in(token_cache_folder()) == std::vector<std::string>{kSomeKey});
}

TEST_CASE("where no file can be written, the tokens stay in the memory of the process") {
  const OwnCacheFolder own("/dev/null/cache");
  for (int i = 0; i < 2; ++i) {
    const TokenCache cache = made_cache();
    CHECK(cache.was_made());
    CHECK(cache.memory_bytes() > 4 * kCachedDocuments);
    CHECK(has_made_tokens(cache));
  }
}

TEST_CASE("the first document that cannot be tokenized is the error, and no file remains") {
  const ScratchFolder folder;
  const OwnCacheFolder own(folder.path());
  const auto tokenize = [](int64_t d, WordCache&) -> MarkedTokens {
    if (d >= 5000) throw EnvError("document " + std::to_string(d));
    return made_tokens(d);
  };
  std::string text;
  try {
    const TokenCache cache(kSomeKey, kCachedDocuments, tokenize);
  } catch (const EnvError& error) {
    text = error.what();
  }
  CHECK(text == "document 5000");
  CHECK(files_in(token_cache_folder()).empty());
}

TEST_CASE("files that no run has used for a month are deleted when another one is written") {
  const ScratchFolder folder;
  const OwnCacheFolder own(folder.path());
  (void)made_cache();
  const std::string path = token_cache_folder() + "/" + kSomeKey, other = digest_of("another key");
  fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours(24 * 31));
  CHECK_FALSE(made_cache().was_made());  // the file is now in use
  (void)made_cache(other);
  CHECK(files_in(token_cache_folder()).size() == 2);
  fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours(24 * 31));
  (void)made_cache(digest_of("a third key"));
  CHECK_FALSE(fs::exists(path));
  CHECK(fs::exists(token_cache_folder() + "/" + other));
}

TEST_CASE("a key changes with each byte of the data, the tokenizer, its template and the settings") {
  const ScratchFolder folder;
  const auto write = [&](const char* name, const std::string& text) {
    std::ofstream(folder.path() + "/" + name) << text;
  };
  write("a.jsonl", "{}\n");
  write("b.jsonl", "{} \n");
  write("tokenizer.json", "{}");
  const std::vector<std::string> a = {folder.path() + "/a.jsonl"}, b = {folder.path() + "/b.jsonl"};
  std::vector<std::string> keys;
  const auto add = [&](const std::vector<std::string>& files, const std::string& setting) {
    TokenKey key(files, folder.path());
    key.add(setting);
    keys.push_back(key.text());
  };
  add(a, "all");
  add(a, "assistant");
  add(b, "all");
  add({a[0], b[0]}, "all");
  add({b[0], a[0]}, "all");
  write("chat_template.jinja", "x");
  add(a, "all");
  write("chat_template.jinja", "y");
  add(a, "all");
  write("tokenizer_config.json", "{}");
  add(a, "all");
  write("tokenizer.json", "{ }");
  add(a, "all");
  for (size_t i = 0; i < keys.size(); ++i)
    for (size_t j = 0; j < i; ++j) CHECK_MESSAGE(keys[i] != keys[j], i << " " << j);
  const std::string last = keys.back();
  add(a, "all");
  CHECK(keys.back() == last);
}

TEST_CASE("a key changes with the bytes of a shard that an index names") {
  const ScratchFolder folder;
  const auto write = [&](const char* name, const std::string& text) {
    std::ofstream(folder.path() + "/" + name) << text;
  };
  write("tokenizer.json", "{}");
  write("index.json", R"({"version": 2, "shards": [{"format": "mds", "column_names": ["text"],
    "column_encodings": ["str"], "samples": 1, "raw_data": {"basename": "shard.mds", "bytes": 8}}]})");
  const auto key = [&] { return TokenKey({folder.path() + "/index.json"}, folder.path()).text(); };
  write("shard.mds", "12345678");
  const std::string before = key();
  CHECK(key() == before);
  write("shard.mds", "1234567x");
  CHECK(key() != before);
}

}  // namespace trainctl
