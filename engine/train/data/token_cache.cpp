// Tokenizes the documents of a set, and caches their tokens in a file.
#include "engine/train/data/token_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <exception>
#include <filesystem>
#include <memory>
#include <thread>
#include <utility>

#include "engine/base/cache_folder.h"
#include "engine/base/error.h"
#include "engine/base/round_up.h"
#include "engine/runtime/comm/event.h"
#include "engine/train/data/documents.h"
#include "engine/train/data/inflated_file.h"
#include "engine/train/data/tables/table_file.h"
#include "engine/train/files/digest.h"
#include "engine/train/files/disk.h"
#include "engine/train/files/input_file.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

/// Must be raised when the same files give different tokens than before.
constexpr const char* kTokenizationVersion = "2";
constexpr std::string_view kTokensMagic = "trainctl tokens\n";
constexpr int64_t kDocumentsAtOnce = 4096;
constexpr auto kKeptUnused = std::chrono::hours(24 * 30);

struct TokenFileHeader {
  std::array<char, 16> magic{};
  std::array<char, kDigestDigits> key{}, checksum{};
  int64_t documents = 0, count = 0;
};
static_assert(sizeof(TokenFileHeader) == 96);

template <class T>
std::span<const uint8_t> bytes_of(std::span<T> values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.size_bytes()};
}

/// Tokenizes documents on the cores of this process, with one cache of words per thread.
class ParallelTokenizer {
 public:
  explicit ParallelTokenizer(const TokenCache::Tokenize& tokenize)
      : tokenize_(tokenize), caches_(static_cast<size_t>(std::max(comm::usable_cores(), 1))) {}

  /// The words of the documents [begin, end). Throws the error of the first document that has one.
  std::vector<std::vector<uint32_t>> tokenize(int64_t begin, int64_t end) {
    std::vector<std::vector<uint32_t>> results(static_cast<size_t>(end - begin));
    std::vector<std::exception_ptr> errors(results.size());
    std::atomic<int64_t> next = begin, failed = end;
    const auto run = [&](WordCache& cache) {
      for (int64_t d = next++; d < failed; d = next++) {
        try {
          results[static_cast<size_t>(d - begin)] = words_of(tokenize_(d, cache));
        } catch (...) {
          errors[static_cast<size_t>(d - begin)] = std::current_exception();
          for (int64_t first = failed; d < first && !failed.compare_exchange_weak(first, d);) {
          }
        }
      }
    };
    {
      std::vector<std::jthread> threads;
      for (size_t t = 1; t < std::min(caches_.size(), results.size()); ++t)
        threads.emplace_back([&, t] { run(caches_[t]); });
      run(caches_[0]);
    }
    if (failed < end) std::rethrow_exception(errors[static_cast<size_t>(failed - begin)]);
    return results;
  }

 private:
  static std::vector<uint32_t> words_of(const MarkedTokens& tokens) {
    std::vector<uint32_t> words(tokens.tokens.size());
    for (size_t i = 0; i < words.size(); ++i)
      words[i] = static_cast<uint32_t>(tokens.tokens[i]) | (tokens.marked[i] ? DocumentTokens::kTrained : 0);
    return words;
  }

  const TokenCache::Tokenize& tokenize_;
  std::vector<WordCache> caches_;
};

/// Calls `write(words)` for each document, in their order.
template <class Write>
void tokenize_all(int64_t documents, const TokenCache::Tokenize& tokenize, Write write) {
  ParallelTokenizer tokenizer(tokenize);
  for (int64_t begin = 0; begin < documents; begin += kDocumentsAtOnce)
    for (const auto& words : tokenizer.tokenize(begin, std::min(documents, begin + kDocumentsAtOnce))) write(words);
}

/// Thrown for a file that cannot be written, in contrast to a document that cannot be read.
struct NotWritten {};

template <class Call>
auto or_not_written(Call call) {
  try {
    return call();
  } catch (const EnvError&) {
    throw NotWritten();
  }
}

/// Holds the lock of a file NAME.part. Processes that wait for it find the complete file once they get the lock.
class LockedPart {
 public:
  /// Throws NotWritten if the file cannot be created.
  explicit LockedPart(const std::string& path) : path_(path) {
    do {
      if (fd_ >= 0) close(fd_);
      fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
      if (fd_ < 0) throw NotWritten();
      while (flock(fd_, LOCK_EX) != 0) {
        if (errno == EINTR) continue;
        close(fd_);
        throw NotWritten();
      }
    } while (!is_at_path());  // the process that had the lock has renamed or deleted the file
  }
  ~LockedPart() {
    if (!is_renamed_) unlink(path_.c_str());
    close(fd_);
  }
  LockedPart(const LockedPart&) = delete;
  LockedPart& operator=(const LockedPart&) = delete;

  /// Throws NotWritten if the file cannot be renamed.
  void rename_to(const std::string& path) {
    if (rename(path_.c_str(), path.c_str()) != 0) throw NotWritten();
    is_renamed_ = true;
  }

 private:
  bool is_at_path() const {
    struct stat own {
    }, named{};
    return fstat(fd_, &own) == 0 && stat(path_.c_str(), &named) == 0 && own.st_ino == named.st_ino &&
           own.st_dev == named.st_dev;
  }

  const std::string path_;
  int fd_ = -1;
  bool is_renamed_ = false;
};

/// Deletes files that no run has used for a month. Errors have no effect.
void delete_unused(const fs::path& folder) {
  std::error_code error;
  const auto now = fs::file_time_type::clock::now();
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    std::error_code ignored;
    const auto used = fs::last_write_time(at->path(), ignored);
    if (!ignored && now - used > kKeptUnused) fs::remove(at->path(), ignored);
  }
}

/// Writes the file of a key front to back; the header comes last.
class TokenFileWriter {
 public:
  explicit TokenFileWriter(const std::string& path) : file_(path) {}

  void add(std::span<const uint32_t> words) {
    offsets_.push_back(count_);
    count_ += static_cast<int64_t>(words.size());
    write(bytes_of(words));
  }

  void finish(const std::string& key) {
    const auto documents = static_cast<int64_t>(offsets_.size());
    offsets_.push_back(count_);
    if (count_ % 2 != 0) write(bytes_of(std::span<const uint32_t>(&kPadding, 1)));
    write(bytes_of(std::span<const int64_t>(offsets_)));
    TokenFileHeader header;
    kTokensMagic.copy(header.magic.data(), header.magic.size());
    key.copy(header.key.data(), header.key.size());
    digest_.digits().copy(header.checksum.data(), header.checksum.size());
    header.documents = documents;
    header.count = count_;
    file_.write(0, bytes_of(std::span<const TokenFileHeader>(&header, 1)));
    file_.sync_and_close();
  }

 private:
  static constexpr uint32_t kPadding = 0;

  void write(std::span<const uint8_t> bytes) {
    digest_.add(bytes);
    file_.write(at_, bytes);
    at_ += static_cast<int64_t>(bytes.size());
  }

  DiskFile file_;
  Digest digest_;
  int64_t at_ = sizeof(TokenFileHeader), count_ = 0;
  std::vector<int64_t> offsets_;
};

std::string current_date() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::array<char, 32> text{};
  return std::string(text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%d", &local));
}

}  // namespace

int64_t DocumentTokens::count_trained(int64_t begin, int64_t end) const {
  const int64_t last = std::min(end, size());
  if (begin >= last) return 0;
  return std::count_if(words_.begin() + begin, words_.begin() + last, [](uint32_t w) { return (w & kTrained) != 0; });
}

TokenCache::TokenCache(const std::string& key, int64_t documents, const Tokenize& tokenize) {
  check(key.size() == kDigestDigits, "a key is a digest");
  const std::string folder = token_cache_folder();
  const std::string path = folder + "/" + key;
  if (!folder.empty() && map(path, key, documents)) return;
  try {
    if (folder.empty()) throw NotWritten();
    std::error_code error;
    fs::create_directories(folder, error);
    make(path, key, documents, tokenize);
  } catch (const NotWritten&) {
    keep_in_memory(documents, tokenize);
  }
}

DocumentTokens TokenCache::document(int64_t number) const {
  const int64_t begin = offsets_[static_cast<size_t>(number)], end = offsets_[static_cast<size_t>(number) + 1];
  return DocumentTokens(words_.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
}

/// Maps the file of the tokens. Returns false if there is no such file, or if it is damaged.
bool TokenCache::map(const std::string& path, const std::string& key, int64_t documents) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return false;
  MappedFile file;
  try {
    file = MappedFile(path);
  } catch (const EnvError&) {
    return false;
  }
  const std::span<const uint8_t> bytes = file.bytes();
  TokenFileHeader header;
  if (bytes.size() < sizeof header) return false;
  std::memcpy(&header, bytes.data(), sizeof header);
  const auto text = [](const auto& chars) { return std::string_view(chars.data(), chars.size()); };
  if (text(header.magic) != kTokensMagic || text(header.key) != key || header.documents != documents) return false;
  const std::span<const uint8_t> body = bytes.subspan(sizeof header);
  const auto size = static_cast<int64_t>(body.size()), offsets_bytes = (documents + 1) * 8;
  if (header.count < 0 || header.count > size / 4 || round_up(header.count, 2) * 4 + offsets_bytes != size)
    return false;
  Digest digest;
  digest.add(body);
  if (digest.digits() != text(header.checksum)) return false;
  words_ = {reinterpret_cast<const uint32_t*>(body.data()), static_cast<size_t>(header.count)};
  offsets_ = {reinterpret_cast<const int64_t*>(body.data() + size - offsets_bytes), static_cast<size_t>(documents) + 1};
  file_ = std::move(file);
  fs::last_write_time(path, fs::file_time_type::clock::now(), error);  // it is in use
  return true;
}

void TokenCache::make(const std::string& path, const std::string& key, int64_t documents, const Tokenize& tokenize) {
  const std::string part = path + ".part";
  LockedPart lock(part);
  if (map(path, key, documents)) return;  // another process has made it in the meantime
  delete_unused(fs::path(path).parent_path());
  auto writer = or_not_written([&] { return std::make_unique<TokenFileWriter>(part); });
  tokenize_all(documents, tokenize,
               [&](const std::vector<uint32_t>& words) { or_not_written([&] { writer->add(words); }); });
  or_not_written([&] { writer->finish(key); });
  lock.rename_to(path);
  if (!map(path, key, documents)) throw NotWritten();
  was_made_ = true;
}

void TokenCache::keep_in_memory(int64_t documents, const Tokenize& tokenize) {
  own_offsets_ = {0};
  tokenize_all(documents, tokenize, [this](const std::vector<uint32_t>& words) {
    own_.insert(own_.end(), words.begin(), words.end());
    own_offsets_.push_back(static_cast<int64_t>(own_.size()));
  });
  words_ = own_;
  offsets_ = own_offsets_;
  was_made_ = true;
}

std::string token_cache_folder() {
  const fs::path root = cache_folder();
  return root.empty() ? "" : (root / "tokens").string();
}

TokenKey::TokenKey(const std::vector<std::string>& files, const std::string& tokenizer) {
  add(kTokenizationVersion);
  for (const std::string& file : files) {
    const bool is_table = !is_json_lines(file) && is_table_file(file);
    add(is_json_lines(file) ? "lines" : is_table ? "table" : is_compressed_name(file) ? "compressed" : "text");
    if (is_table)
      for (const std::string& part : table_file_parts(file)) add_file(part);
    else
      add_file(file);
  }
  const std::string file = find_tokenizer_file(tokenizer);
  add_file(file);
  add(file.ends_with(".model") ? "sentencepiece" : "json");
  for (const char* name : {"tokenizer_config.json", "chat_template.jinja"}) {
    const fs::path beside = fs::path(file).parent_path() / name;
    std::error_code error;
    add(name);
    if (!fs::exists(beside, error)) continue;
    add_file(beside.string());
    if (read_whole_file(beside.string()).find("strftime_now") != std::string::npos) add(current_date());
  }
}

void TokenKey::add(std::string_view setting) { settings_.append(setting).append("\n"); }

void TokenKey::add_file(const std::string& path) {
  constexpr int64_t kAtOnce = int64_t{4} << 20;
  const InputFile file(path);
  if (!file.identity().empty()) {  // reading an object would fetch it
    add("object " + file.path() + " " + file.identity());
    add(std::to_string(file.bytes()));
    return;
  }
  Digest digest;
  std::vector<uint8_t> buffer(static_cast<size_t>(std::min(kAtOnce, file.bytes())));
  for (int64_t at = 0; at < file.bytes(); at += kAtOnce) {
    const std::span<uint8_t> part(buffer.data(), static_cast<size_t>(std::min(kAtOnce, file.bytes() - at)));
    file.read(at, part);
    digest.add(part);
  }
  add(digest.digits());
  add(std::to_string(file.bytes()));
}

std::string TokenKey::text() const { return digest_of(settings_); }

}  // namespace trainctl
