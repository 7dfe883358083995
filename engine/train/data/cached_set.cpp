// Data sets that wrap another one: a cache, and a set that replaces broken samples.
#include "engine/train/data/cached_set.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <numeric>

#include "engine/base/checked.h"
#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/ops/random.h"
#include "engine/spec/fields.h"

namespace trainctl {
namespace {

int64_t sample_bytes(const Dataset& set) {
  int64_t bytes = 0;
  for (const SampleField& field : set.fields()) bytes += field.bytes();
  return bytes;
}

/// Zero-initialized memory that takes physical room only where it is written.
class Pages {
 public:
  Pages(int64_t bytes, CachePlace place, int shared) : bytes_(static_cast<size_t>(std::max<int64_t>(bytes, 1))) {
    const int own = place == CachePlace::disk ? make_file(bytes) : -1;
    const int file = own >= 0 ? own : shared;
    if (file == shared && shared >= 0 && ftruncate(shared, static_cast<off_t>(bytes_)) != 0)  // all ranks the same size
      throw EnvError(fmt::format("cannot allocate {} for the shared cache: {}; set dataset.cache: none",
                                 format_bytes(bytes), std::strerror(errno)));
    const int flags = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED | MAP_NORESERVE;
    void* at = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, flags, file, 0);
    if (own >= 0) close(own);
    if (at == MAP_FAILED)
      throw EnvError(fmt::format("cannot map the cache of {}: {}", format_bytes(bytes), std::strerror(errno)));
    data_ = static_cast<std::byte*>(at);
  }
  ~Pages() { munmap(data_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  std::byte* at(int64_t offset) const { return data_ + offset; }

 private:
  static int make_file(int64_t bytes) {
    const char* folder = std::getenv("TMPDIR");
    const std::string name = std::string(folder != nullptr && *folder != '\0' ? folder : "/tmp");
    struct statvfs disk {};
    if (statvfs(name.c_str(), &disk) == 0) {
      const int64_t room = capped_product(static_cast<int64_t>(disk.f_bavail), static_cast<int64_t>(disk.f_frsize));
      if (room < bytes)
        throw EnvError(
            fmt::format("{}: the cache needs {}, but only {} are free; set TMPDIR to a folder with more free space, "
                        "or set dataset.cache: none",
                        name, format_bytes(bytes), format_bytes(room)));
    }
    const int file = open(name.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    // posix_fallocate reserves the room, so that a disk that fills up later cannot end the process with SIGBUS.
    const int error = file < 0 ? errno : posix_fallocate(file, 0, std::max<int64_t>(bytes, 1));
    if (error != 0) {
      if (file >= 0) close(file);
      throw EnvError(fmt::format("{}: cannot create a file of {} for the cache: {}", name, format_bytes(bytes),
                                 std::strerror(error)));
    }
    return file;
  }

  size_t bytes_;
  std::byte* data_ = nullptr;
};

class Cached final : public Dataset {
 public:
  Cached(std::unique_ptr<Dataset> inner, CachePlace place, int shared)
      : inner_(std::move(inner)),
        sample_bytes_(sample_bytes(*inner_)),
        fields_(inner_->fields().size()),
        flags_bytes_(capped_product(inner_->size(), static_cast<int64_t>(fields_))),
        pages_(capped_sum(flags_bytes_, cached_bytes(*inner_)), place, shared) {
    int64_t offset = 0;
    for (const SampleField& field : inner_->fields()) {
      offsets_.push_back(offset);
      offset += field.bytes();
    }
  }
  int64_t size() const override { return inner_->size(); }
  void expect(int64_t sample) const override {
    for (size_t i = 0; i < fields_; ++i)
      if (flag(sample, i).load(std::memory_order_relaxed) != Kept::yes) return inner_->expect(sample);
  }
  const std::vector<SampleField>& fields() const override { return inner_->fields(); }
  void prepare(ReadState& state) const override { inner_->prepare(state); }
  SkippedSamples skipped() const override { return inner_->skipped(); }
  std::string where(int64_t sample) const override { return inner_->where(sample); }

  void read(int64_t sample, ReadState& state, SampleOutputs to) const override {
    std::array<void*, kMaxSampleFields> missing{};
    bool any = false;
    for (size_t i = 0; i < fields_; ++i) {
      if (to[i] == nullptr) continue;
      if (flag(sample, i).load(std::memory_order_acquire) == Kept::yes) {
        const StageTimer timer(state.seconds, ReadStage::read);
        std::memcpy(to[i], value(sample, i), bytes(i));
      } else {
        missing[i] = to[i];
        any = true;
      }
    }
    if (!any) return;
    inner_->read(sample, state, std::span<void* const>(missing.data(), fields_));
    for (size_t i = 0; i < fields_; ++i) {
      Kept expected = Kept::no;
      if (missing[i] == nullptr || !flag(sample, i).compare_exchange_strong(expected, Kept::soon)) continue;
      std::memcpy(value(sample, i), missing[i], bytes(i));
      flag(sample, i).store(Kept::yes, std::memory_order_release);
    }
  }

 private:
  enum class Kept : uint8_t { no, soon, yes };  ///< soon: a worker writes it
  std::atomic<Kept>& flag(int64_t sample, size_t field) const {
    static_assert(sizeof(std::atomic<Kept>) == 1 && std::atomic<Kept>::is_always_lock_free, "processes share them");
    return *reinterpret_cast<std::atomic<Kept>*>(
        pages_.at(sample * static_cast<int64_t>(fields_) + static_cast<int64_t>(field)));
  }
  std::byte* value(int64_t sample, size_t field) const {
    return pages_.at(flags_bytes_ + sample * sample_bytes_ + offsets_[field]);
  }
  size_t bytes(size_t field) const { return static_cast<size_t>(inner_->fields()[field].bytes()); }

  std::unique_ptr<Dataset> inner_;
  int64_t sample_bytes_;
  size_t fields_;
  int64_t flags_bytes_;  ///< The memory begins with a flag for each field of each sample; the samples follow.
  Pages pages_;
  std::vector<int64_t> offsets_;
};

class Mended final : public Dataset {
 public:
  Mended(std::unique_ptr<Dataset> inner, uint64_t seed)
      : inner_(std::move(inner)), key_(stream_key(seed, stable_hash("dataset.replacement"))) {}
  int64_t size() const override { return inner_->size(); }
  void expect(int64_t sample) const override { inner_->expect(sample); }
  const std::vector<SampleField>& fields() const override { return inner_->fields(); }
  void prepare(ReadState& state) const override {
    inner_->prepare(state);
    state.unwanted.resize(fields().size());
    state.all.resize(fields().size());
  }
  std::string where(int64_t sample) const override { return inner_->where(sample); }
  SkippedSamples skipped() const override {
    const std::lock_guard lock(mutex_);
    return skipped_;
  }

  void read(int64_t sample, ReadState& state, SampleOutputs to) const override {
    prepare(state);
    const SampleRng start = state.rng;
    // Reads also fields that this rank does not need, because all ranks must agree on whether a sample is damaged.
    for (size_t i = 0; i < fields().size(); ++i) {
      if (to[i] == nullptr) state.unwanted[i].resize(static_cast<size_t>(fields()[i].bytes()));
      state.all[i] = to[i] == nullptr ? state.unwanted[i].data() : to[i];
    }
    int64_t taken = sample;
    for (uint64_t attempt = 0;; ++attempt) {
      try {
        state.rng = start.of(taken);
        return inner_->read(taken, state, state.all);
      } catch (const EnvError& error) {
        count(error);
        if (attempt == kMostAttempts)
          throw EnvError(
              fmt::format("{} consecutive samples cannot be read; the last error: {}", attempt + 1, error.what()));
      }
      const Philox4 words = philox(key_, attempt, static_cast<uint64_t>(sample));
      const uint64_t word = uint64_t{words.v[0]} << 32 | words.v[1];
      taken = static_cast<int64_t>(word % static_cast<uint64_t>(size()));
    }
  }

 private:
  static constexpr uint64_t kMostAttempts = 100;

  void count(const EnvError& error) const {
    const std::lock_guard lock(mutex_);
    if (skipped_.count++ == 0) skipped_.first = error.what();
  }

  std::unique_ptr<Dataset> inner_;
  uint64_t key_;
  mutable std::mutex mutex_;
  mutable SkippedSamples skipped_;
};

}  // namespace

int64_t cached_bytes(const Dataset& set) { return capped_product(set.size(), sample_bytes(set)); }

std::unique_ptr<Dataset> keep_samples(std::unique_ptr<Dataset> inner, CachePlace place, int shared) {
  return std::make_unique<Cached>(std::move(inner), place, shared);
}

std::unique_ptr<Dataset> replace_broken(std::unique_ptr<Dataset> inner, uint64_t seed) {
  return std::make_unique<Mended>(std::move(inner), seed);
}

}  // namespace trainctl
